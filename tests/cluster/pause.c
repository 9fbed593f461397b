/* The first process of a pod's sandbox: it reaps whom it adopts, and ends when it is told to. */

#include <signal.h>
#include <unistd.h>

int main(void)
{
    struct sigaction reap = { .sa_handler = SIG_DFL, .sa_flags = SA_NOCLDWAIT };

    sigaction(SIGCHLD, &reap, 0);
    /* The kernel keeps signals without a handler from a first process. */
    signal(SIGTERM, _exit);
    signal(SIGINT, _exit);
    for (;;)
        pause();
}
