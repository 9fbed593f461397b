/* The least that a parallel program does: all ranks add up a vector, as often as the second argument says, and rank 0 says so.
   Exits with 9 when the world is not of the size that the first one says, or a sum is wrong. `make bench` measures this. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define LENGTH 1000

int main(int argc, char **argv)
{
    int rank, size, wanted = argc > 1 ? atoi(argv[1]) : 0, times = argc > 2 ? atoi(argv[2]) : 1;
    double numbers[LENGTH], sums[LENGTH];

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != wanted) {
        fprintf(stderr, "a world of %d instead of %d\n", size, wanted);
        MPI_Finalize();
        return 9;
    }
    for (int i = 0; i < LENGTH; i++)
        numbers[i] = rank + i;
    while (times-- > 0)
        MPI_Allreduce(numbers, sums, LENGTH, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < LENGTH; i++)
        if (sums[i] != size * (size - 1) / 2.0 + (double) size * i)
            MPI_Abort(MPI_COMM_WORLD, 9);
    if (rank == 0)
        printf("%d ranks agree\n", size);
    MPI_Finalize();
    return 0;
}
