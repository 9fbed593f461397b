/* A rank of the chaos loop. Without -DWITH_MPI it is a plain program.

   It prints LINES lines, which tests/chaos/checks.py knows to the byte, over SECONDS, and then "end". Each line is one write. MPI
   ranks add up their numbers at the start and at the end. It ends by itself: its children have an alarm. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#ifdef WITH_MPI
#include <mpi.h>
#endif

#define CHILD_SECONDS 150
#define ORPHAN_SECONDS 60
#define STEP_NANOSECONDS 20000000

static int rank;
#ifdef WITH_MPI
static int size;
#endif

static double now(void)
{
    struct timespec clock;
    clock_gettime(CLOCK_MONOTONIC, &clock);
    return clock.tv_sec + clock.tv_nsec / 1e9;
}

static void print(int descriptor, const char *text, int length)
{
    while (length > 0) {
        ssize_t written = write(descriptor, text, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            _exit(96);
        text += written;
        length -= written;
    }
}

/* Line NUMBER: the stream's letter, rank, number, and one letter until the line has WIDTH characters. */
static void print_line(int descriptor, char stream, int number, int width)
{
    char line[4096];
    int length = snprintf(line, sizeof line, "%c%d:%d:", stream, rank, number);
    while (length < width)
        line[length++] = 'a' + number % 26;
    line[length++] = '\n';
    print(descriptor, line, length);
}

static void be_deaf(void)
{
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
}

/* b: in the rank's session, with its stdout. s: in a session of its own. d: a daemon of its own. k: deaf to signals as well. */
static void start_child(char kind)
{
    if (fork())
        return;
    prctl(PR_SET_NAME, "chaos-child");
    alarm(CHILD_SECONDS);
    if (kind != 'b')
        setsid();
    if (kind == 'd') {
        int null = open("/dev/null", O_RDWR);
        for (int descriptor = 0; descriptor < 3; descriptor++)
            dup2(null, descriptor);
        if (fork())
            _exit(0);
        alarm(CHILD_SECONDS);
    }
    if (kind == 'k')
        be_deaf();
    for (;;)
        pause();
}

static void read_stdin(void)
{
    unsigned char data[65536];
    unsigned int sum = 2166136261u;
    long count = 0;
    ssize_t got;
    char line[128];

    while ((got = read(0, data, sizeof data)) > 0 || (got < 0 && errno == EINTR)) {
        for (ssize_t index = 0; index < got; index++)
            sum = (sum ^ data[index]) * 16777619u;
        count += got > 0 ? got : 0;
    }
    print(1, line, snprintf(line, sizeof line, "o%d:stdin:%ld:%u\n", rank, count, sum));
}

static void meet(void)
{
#ifdef WITH_MPI
    long number = rank, sum = 0;
    MPI_Allreduce(&number, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (sum != (long) size * (size - 1) / 2)
        _exit(98);
#endif
}

int main(int argc, char **argv)
{
    int option, lines = 0, width = 0, both = 0, reads = 0, code = 0;
    double seconds = 0, fails_at = -1;
    const char *children = "", *directory = ".";
    char path[4096], line[64];

    rank = atoi(getenv("RANK") ? getenv("RANK") : "0");
    while ((option = getopt(argc, argv, "l:w:s:f:c:dieu:")) != -1) {
        int failing, with;
        double when;
        switch (option) {
        case 'l': lines = atoi(optarg); break;
        case 'w': width = atoi(optarg); break;
        case 's': seconds = atof(optarg); break;
        case 'f':
            if (sscanf(optarg, "%d:%d:%lf", &failing, &with, &when) == 3 && failing == rank) {
                code = with;
                fails_at = when;
            }
            break;
        case 'c': children = optarg; break;
        case 'd': be_deaf(); break;
        case 'i': reads = 1; break;
        case 'e': both = 1; break;
        case 'u': directory = optarg; break;
        default: return 95;
        }
    }
    if (width > (int) sizeof line * 32)
        return 95;
    for (; *children; children++)
        start_child(*children);
#ifdef WITH_MPI
    int number;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &number);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (number != rank)
        _exit(97);
#endif
    meet();
    snprintf(path, sizeof path, "%s/up-%d", directory, rank);
    close(open(path, O_CREAT | O_WRONLY, 0644));
    if (reads && rank == 0)
        read_stdin();
    double began = now();
    int parent = getppid(), orphan = 0;
    for (int done = 0;;) {
        double passed = now() - began;
        int due = seconds > 0 && passed < seconds ? (int) (lines * passed / seconds) : lines;
        for (; done < due; done++) {
            print_line(1, 'o', done, width);
            if (both)
                print_line(2, 'e', done, width);
        }
        /* Its daemon is gone: somebody is to end it, and not to wait for its end. */
        if (getppid() != parent && !orphan) {
            orphan = 1;
            seconds = passed + ORPHAN_SECONDS;
        }
        if (fails_at >= 0 && passed >= fails_at)
            _exit(code);
        if (passed >= seconds)
            break;
        struct timespec step = {0, STEP_NANOSECONDS};
        nanosleep(&step, NULL);
    }
    meet();
#ifdef WITH_MPI
    MPI_Finalize();
#endif
    print(1, line, snprintf(line, sizeof line, "o%d:end\n", rank));
    if (both)
        print(2, line, snprintf(line, sizeof line, "e%d:end\n", rank));
    return 0;
}
