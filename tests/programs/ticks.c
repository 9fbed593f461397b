/* ticks SECONDS SPREAD: prints a line a second, at the full second and the rank's share of SPREAD microseconds. `make bench`
   measures what it costs a launcher. */

#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#define RANKS 64

int main(int argc, char **argv)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    long late = argc > 2 && rank ? atol(argv[2]) * atol(rank) / RANKS : 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int left = argc > 1 ? atoi(argv[1]) : 0; left > 0; left--) {
        struct timeval now;
        gettimeofday(&now, NULL);
        usleep(1000000 - now.tv_usec + late);
        printf("step\n");
    }
    return 0;
}
