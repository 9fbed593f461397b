/* Rank 1 ends in the way that the argument says; the others live until somebody ends them. `never-init` is for all ranks, who then
   end well, and so is `sleep SECONDS`. `late`: rank 1 never comes to the barrier that the others wait in. */

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

/* Before MPI_Init only the launcher's variables tell the rank: ours, those of the MPICH family, Open MPI's. */
static int rank_is_one(void)
{
    const char *names[] = {"RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"};

    for (int i = 0; i < 3; i++)
        if (getenv(names[i]))
            return !strcmp(getenv(names[i]), "1");
    return 0;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    int is_one = rank_is_one();

    if (!strcmp(how, "never-init") || (!strcmp(how, "before-init") && is_one))
        return 0;
    if (!strcmp(how, "in-init")) {
        struct itimerval soon = {{0, 0}, {0, 300000}};
        if (!is_one)
            pause(); /* so that rank 1 cannot leave MPI_Init alive */
        setitimer(ITIMER_REAL, &soon, NULL);
    }
    MPI_Init(&argc, &argv);
    if (!strcmp(how, "sleep")) {
        sleep(atoi(argv[2]));
        MPI_Finalize();
        return 0;
    }
    MPI_Barrier(MPI_COMM_WORLD); /* nobody is still connecting to a rank that is gone */
    if (is_one) {
        if (!strcmp(how, "abort"))
            MPI_Abort(MPI_COMM_WORLD, atoi(argv[2]));
        if (!strcmp(how, "no-finalize"))
            _exit(0);
        if (!strcmp(how, "exit"))
            _exit(7);
        if (!strcmp(how, "crash"))
            abort();
    }
    if (!strcmp(how, "late") && !is_one)
        MPI_Barrier(MPI_COMM_WORLD);
    for (;;)
        pause();
}
