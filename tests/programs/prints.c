/* Each rank prints two lines, without flushing them. Once all have, rank 0 ends in the way that the argument says, and the others
   wait for the end; with `exit` and `finalize` all end so. */

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    int rank;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    printf("rank %d begins\n", rank);
    printf("rank %d works\n", rank);
    MPI_Barrier(MPI_COMM_WORLD);
    while (rank > 0 && strcmp(how, "exit") && strcmp(how, "finalize"))
        pause();
    if (!strcmp(how, "abort"))
        MPI_Abort(MPI_COMM_WORLD, 3);
    if (!strcmp(how, "killed"))
        raise(SIGKILL);
    if (!strcmp(how, "crash"))
        raise(SIGSEGV);
    if (!strcmp(how, "exit"))
        _exit(0);
    MPI_Finalize();
    return 0;
}
