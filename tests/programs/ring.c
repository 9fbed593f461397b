/* All ranks add up their numbers, then hand a megabyte round the ring. Exits with 9 when the world is not of the size that the
   argument says, or a sum or a byte is wrong. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH (1 << 20)

static char sent[LENGTH], got[LENGTH];

int main(int argc, char **argv)
{
    int rank, size, local_rank, local_size, length, wanted = argc > 1 ? atoi(argv[1]) : 0;
    long number, sum = 0;
    char host[MPI_MAX_PROCESSOR_NAME];
    MPI_Comm node;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != wanted) {
        fprintf(stderr, "a world of %d instead of %d\n", size, wanted);
        MPI_Finalize();
        return 9;
    }
    number = rank;
    MPI_Allreduce(&number, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    int left = (rank + size - 1) % size, right = (rank + 1) % size;
    memset(sent, rank + 1, LENGTH);
    MPI_Sendrecv(sent, LENGTH, MPI_CHAR, right, 0, got, LENGTH, MPI_CHAR, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    memset(sent, left + 1, LENGTH);
    if (sum != (long) size * (size - 1) / 2 || memcmp(sent, got, LENGTH))
        MPI_Abort(MPI_COMM_WORLD, 9);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &local_rank);
    MPI_Comm_size(node, &local_size);
    MPI_Comm_free(&node);
    MPI_Get_processor_name(host, &length);
    printf("%d of %d, %d of %d on %s\n", rank, size, local_rank, local_size, host);
    MPI_Finalize();
    return 0;
}
