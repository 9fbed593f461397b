"""The guard: the process that the agent started, waiting behind the daemon so that a killed daemon leaves no rank.

Ranks cannot be tied to the daemon by the kernel alone (a parent-death signal is lost at the first fork of a rank), so the
guard is a subreaper: when the daemon dies, all that it had started becomes the guard's, and the guard kills it. When the
guard dies first, the daemon sees end of file on a pipe and ends its ranks itself. The guard holds neither the wire nor a
rank's output: a dead daemon is seen by the head at once.
"""

from __future__ import annotations

import os
import signal

from mpilaunch.daemon import reaper


def stand_behind(wire: tuple[int, int]) -> int:
    """Fork: the daemon goes on in the child, this process becomes its guard and never returns.

    Returns:
        in the child, a descriptor that reads end of file when the guard has died.
    """
    alive_read, alive_write = os.pipe()
    daemon = os.fork()
    if daemon == 0:
        os.close(alive_write)
        # An agent that kills its process group must not take the guard and the daemon in one blow.
        os.setsid()
        return alive_read
    os.close(alive_read)
    for descriptor in wire:
        os.close(descriptor)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # An agent may end us so when its connection is lost: the daemon has seen that too, and it ends the ranks first.
        signal.signal(number, signal.SIG_IGN)
    reaper.become_subreaper()
    os._exit(_watch(daemon))


def _watch(daemon: int) -> int:
    """Wait for the daemon, kill what it left, return its exit code (128 + N for signal N)."""
    status = 0
    while True:
        try:
            pid, status = os.waitpid(daemon, 0)
        except ChildProcessError:
            break
        if pid == daemon:
            break
    reaper.kill_descendants()
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
