/* The lower half of the ranks opens a port and publishes it under a name; the upper half looks the name up and connects. They add up
   across, part, and withdraw the name. Exits with 9 when the world is not of the size that the argument says, or anything is wrong. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define SERVICE "publish.c"

static void equal(const char *what, int got, int wanted)
{
    if (got != wanted) {
        fprintf(stderr, "%s: %d instead of %d\n", what, got, wanted);
        MPI_Abort(MPI_COMM_WORLD, 9);
    }
}

static void unknown(const char *what)
{
    char port[MPI_MAX_PORT_NAME];
    int error;

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    error = MPI_Lookup_name(SERVICE, MPI_INFO_NULL, port);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    equal(what, error == MPI_SUCCESS, 0);
}

int main(int argc, char **argv)
{
    int rank, size, remote, sum = 0, wanted = argc > 1 ? atoi(argv[1]) : 0;
    char port[MPI_MAX_PORT_NAME];
    MPI_Comm half, others;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != wanted) {
        fprintf(stderr, "a world of %d instead of %d\n", size, wanted);
        MPI_Finalize();
        return 9;
    }
    int is_server = rank < size / 2, leader = is_server ? rank == 0 : rank == size / 2;
    MPI_Comm_split(MPI_COMM_WORLD, is_server, rank, &half);
    if (rank == 0) {
        unknown("a name that nobody published was found");
        MPI_Open_port(MPI_INFO_NULL, port);
        MPI_Publish_name(SERVICE, MPI_INFO_NULL, port);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (leader && !is_server)
        MPI_Lookup_name(SERVICE, MPI_INFO_NULL, port);
    if (is_server)
        MPI_Comm_accept(port, MPI_INFO_NULL, 0, half, &others);
    else
        MPI_Comm_connect(port, MPI_INFO_NULL, 0, half, &others);
    MPI_Comm_remote_size(others, &remote);
    equal("size of the other half", remote, is_server ? size - size / 2 : size / 2);
    /* Across an intercommunicator, each half gets the sum of the other. */
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, others);
    int lower = size / 2 * (size / 2 - 1) / 2, all = size * (size - 1) / 2;
    equal("sum of the other half", sum, is_server ? all - lower : lower);
    MPI_Comm_disconnect(&others);
    if (rank == 0) {
        MPI_Unpublish_name(SERVICE, MPI_INFO_NULL, port);
        MPI_Close_port(port);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (leader)
        unknown("a name that was withdrawn was found");
    printf("%d of %d, of the %s\n", rank, size, is_server ? "servers" : "clients");
    MPI_Comm_free(&half);
    MPI_Finalize();
    return 0;
}
