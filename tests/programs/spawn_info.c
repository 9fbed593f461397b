/* Rank 0 starts others with info keys: `spawn_info PROGRAM COUNT KEY=VALUE...`, as MPICH's tests spawninfo1 and spawnminfo1 do.
   Each child prints the size of its world and its working directory; the parent prints how many it got, and how many codes
   of the COUNT are errors. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int size, count, missing = 0, errors[64];
    char directory[4096];
    MPI_Comm parent, others;
    MPI_Info info;

    MPI_Init(&argc, &argv);
    MPI_Comm_get_parent(&parent);
    if (parent != MPI_COMM_NULL) {
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        printf("child of %d in %s\n", size, getcwd(directory, sizeof directory));
        fflush(stdout);
        MPI_Comm_disconnect(&parent);
        MPI_Finalize();
        return 0;
    }
    MPI_Info_create(&info);
    for (int i = 3; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        *value = 0;
        MPI_Info_set(info, argv[i], value + 1);
    }
    count = atoi(argv[2]);
    MPI_Comm_spawn(argv[1], MPI_ARGV_NULL, count, info, 0, MPI_COMM_WORLD, &others, errors);
    MPI_Comm_remote_size(others, &size);
    for (int i = 0; i < count; i++)
        missing += errors[i] != MPI_SUCCESS;
    printf("%d children, %d errors\n", size, missing);
    MPI_Info_free(&info);
    MPI_Comm_disconnect(&others);
    MPI_Finalize();
    return 0;
}
