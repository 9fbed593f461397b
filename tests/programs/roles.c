/* One role of two, named by the argument: the server publishes a port and accepts, the client looks it up and connects. Each world adds
   up across. Exits with 9 when anything is wrong. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SERVICE "roles.c"

int main(int argc, char **argv)
{
    int rank, size, remote, one = 1, sum = 0, is_server = argc > 1 && !strcmp(argv[1], "server");
    char port[MPI_MAX_PORT_NAME];
    MPI_Comm others;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == 0 && is_server) {
        MPI_Open_port(MPI_INFO_NULL, port);
        MPI_Publish_name(SERVICE, MPI_INFO_NULL, port);
    } else if (rank == 0) {
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        while (MPI_Lookup_name(SERVICE, MPI_INFO_NULL, port) != MPI_SUCCESS)
            usleep(10000);
    }
    if (is_server)
        MPI_Comm_accept(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &others);
    else
        MPI_Comm_connect(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &others);
    MPI_Comm_remote_size(others, &remote);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, others);
    if (sum != remote)
        MPI_Abort(MPI_COMM_WORLD, 9);
    printf("%s %d of %d met %d\n", argv[1], rank, size, remote);
    fflush(stdout);
    MPI_Comm_disconnect(&others);
    MPI_Finalize();
    return 0;
}
