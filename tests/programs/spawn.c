/* The ranks start others together: `spawn one|multiple PARENTS CHILDREN UNIVERSE`. Both sides see each other's size, merge into
   one world, add up and hand a number over and back there, and part. With `multiple`, the last child is a program of its own.
   UNIVERSE is what MPI_UNIVERSE_SIZE has to be, -1 for unset, 0 for any. Exits with 9 when a size or a number is wrong. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int right, const char *what, int got, int wanted)
{
    if (!right) {
        fprintf(stderr, "%s: %d instead of %d\n", what, got, wanted);
        MPI_Abort(MPI_COMM_WORLD, 9);
    }
}

static void equal(const char *what, int got, int wanted)
{
    check(got == wanted, what, got, wanted);
}

/* What both sides do with each other. */
static void meet(MPI_Comm others, int is_child, int parents, int children)
{
    int rank, size, number, sum = 0, all = parents + children;
    MPI_Comm both;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    equal("size of the own world", size, is_child ? children : parents);
    MPI_Comm_remote_size(others, &size);
    equal("size of the other world", size, is_child ? parents : children);
    MPI_Intercomm_merge(others, is_child, &both);
    MPI_Comm_rank(both, &number);
    equal("rank in the merged world", number, is_child ? parents + rank : rank);
    MPI_Allreduce(&number, &sum, 1, MPI_INT, MPI_SUM, both);
    equal("sum in the merged world", sum, all * (all - 1) / 2);
    /* Not by `others`: Intel MPI crashes in MPI_Comm_disconnect after a message there. */
    if (rank == 0 && is_child) {
        MPI_Recv(&number, 1, MPI_INT, 0, 1, both, MPI_STATUS_IGNORE);
        number *= 2;
        MPI_Send(&number, 1, MPI_INT, 0, 2, both);
    } else if (rank == 0) {
        number = 21;
        MPI_Send(&number, 1, MPI_INT, parents, 1, both);
        MPI_Recv(&number, 1, MPI_INT, parents, 2, both, MPI_STATUS_IGNORE);
        equal("the number that came back", number, 42);
    }
    MPI_Comm_free(&both); /* not MPI_Comm_disconnect: Open MPI hangs in it after a merge */
    MPI_Comm_disconnect(&others);
}

static void be_child(MPI_Comm parent, char **argv)
{
    int rank, *app, given, parents = atoi(argv[2]), children = atoi(argv[3]), wanted_app = atoi(argv[4]);

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (wanted_app == 1)
        equal("rank of the second program", rank, children - 1);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &app, &given);
    equal("number of the program", given ? *app : -1, wanted_app);
    meet(parent, 1, parents, children);
    printf("child %d of %d, of program %d\n", rank, children, wanted_app);
}

static void be_parent(char **argv)
{
    int rank, *universe, given, parents = atoi(argv[2]), children = atoi(argv[3]), wanted = atoi(argv[4]), errors[64];
    MPI_Comm others;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_UNIVERSE_SIZE, &universe, &given);
    if (wanted)
        equal("size of the universe", given ? *universe : -1, wanted);
    char *words[] = {"child", argv[2], argv[3], "0", NULL}, *others_words[] = {"child", argv[2], argv[3], "1", NULL};
    if (!strcmp(argv[1], "multiple")) {
        char *commands[] = {argv[0], argv[0]}, **arguments[] = {words, others_words};
        int counts[] = {children - 1, 1};
        MPI_Info infos[] = {MPI_INFO_NULL, MPI_INFO_NULL};
        MPI_Comm_spawn_multiple(2, commands, arguments, counts, infos, 0, MPI_COMM_WORLD, &others, errors);
    } else
        MPI_Comm_spawn(argv[0], words, children, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &others, errors);
    for (int i = 0; i < children; i++)
        equal("error of a spawned rank", errors[i], MPI_SUCCESS);
    meet(others, 0, parents, children);
    printf("parent %d of %d, with %d children\n", rank, parents, children);
}

int main(int argc, char **argv)
{
    MPI_Comm parent;

    if (argc != 5)
        return 2;
    MPI_Init(NULL, NULL);
    MPI_Comm_get_parent(&parent);
    if (!strcmp(argv[1], "child")) {
        check(parent != MPI_COMM_NULL, "a child has no parent", 0, 1);
        be_child(parent, argv);
    } else {
        check(parent == MPI_COMM_NULL, "the first world has a parent", 1, 0);
        be_parent(argv);
    }
    MPI_Finalize();
    return 0;
}
