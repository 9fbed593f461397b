/* Each rank says what MPI knows of it beside its place in the world. */

#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int rank, size, has_app, has_universe, *app, *universe;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &app, &has_app);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_UNIVERSE_SIZE, &universe, &has_universe);
    printf("%d of %d, app %d, universe of %d\n", rank, size, has_app ? *app : -1, has_universe ? *universe : -1);
    MPI_Finalize();
    return 0;
}
