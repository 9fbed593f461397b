/* Rank 1 ends in the way that the argument says; the others live until somebody ends them. */

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    int is_one = !strcmp(getenv("RANK"), "1");

    if (!strcmp(how, "before-init") && is_one)
        return 0;
    if (!strcmp(how, "in-init")) {
        struct itimerval soon = {{0, 0}, {0, 300000}};
        if (!is_one)
            pause(); /* so that rank 1 cannot leave MPI_Init alive */
        setitimer(ITIMER_REAL, &soon, NULL);
    }
    MPI_Init(&argc, &argv);
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
    for (;;)
        pause();
}
