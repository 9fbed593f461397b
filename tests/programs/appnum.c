/* Every rank says which of the programs of one job it is. Exits with 9 when the world is not of the size that the first argument
   says, or the number of the program is not the second. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, size, *app, given, wanted_size = argc > 2 ? atoi(argv[1]) : 0, wanted_app = argc > 2 ? atoi(argv[2]) : 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &app, &given);
    if (size != wanted_size || !given || *app != wanted_app) {
        fprintf(stderr, "a world of %d instead of %d\n", size, wanted_size);
        fprintf(stderr, "program %d instead of %d\n", given ? *app : -1, wanted_app);
        MPI_Finalize();
        return 9;
    }
    printf("%d of %d is of program %d\n", rank, size, *app);
    MPI_Finalize();
    return 0;
}
