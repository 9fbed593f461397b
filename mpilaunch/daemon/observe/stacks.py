"""Have processes of Python whose memory could not be read write the stacks of all their threads to stderr, as they end.

With PYTHONFAULTHANDLER, which ranks get, Python does so at SIGABRT (the module faulthandler); nothing else is put into a rank.
A rank that handles SIGTERM is left to that: it may have something to save. The worker processes of a rank, those of a
DataLoader for instance, write theirs after it: what two processes write at once would be mixed. They are asked also where they
handle SIGTERM, as those of torch do to end with their parent.
"""

from __future__ import annotations

import os
import resource
import signal

from mpilaunch.daemon.observe.workers import program_of, worker_of, workers_of
from mpilaunch.daemon.ranks import reaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

VARIABLE = b"PYTHONFAULTHANDLER="
_START = 19
"""Place of the start time in /proc/PID/stat behind the name."""


class Stacks:
    """The requests to the processes of some ranks.

    Args:
        pids: the process of each rank.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        # Workers are found before any process ends: afterwards, nothing tells whose they were.
        ranks = [pid for pid in map(worker_of, pids) if _tells(pid) and not reaper.catches(pid, signal.SIGTERM)]
        self._queues = [[(each, _start_of(each)) for each in (pid, *filter(_tells, workers_of(pid)))] for pid in ranks]
        self._asked: set[int] = set()

    def ask(self) -> bool:
        """Ask the first living process of each rank, unless that was done; return whether one is being waited for."""
        for queue in self._queues:
            while queue and _start_of(queue[0][0]) != queue[0][1]:
                queue.pop(0)
            if queue and queue[0][0] not in self._asked:
                self._asked.add(queue[0][0])
                _abort(queue[0][0])
        self._queues = [queue for queue in self._queues if queue]
        return bool(self._queues)


def _abort(pid: int) -> None:
    try:
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))  # a core file of a rank would fill the disk
        os.kill(pid, signal.SIGABRT)
    except (OSError, ValueError):
        pass  # it has just gone, or is another user's now


def _start_of(pid: int) -> bytes:
    """Return when a living process was started, by which it is told from a later one with its number; empty if it has ended."""
    stat = reaper.stat(pid)
    return stat[_START] if len(stat) > _START and stat[0] not in (b"Z", b"X") else b""


def _tells(pid: int) -> bool:
    """Return whether a process is Python, and writes its stacks at SIGABRT."""
    name = os.path.basename(program_of(pid))
    if not name.startswith(("python", "pypy")):
        return False
    variables = reaper.process_file(pid, "environ").split(b"\0")
    enabled = any(each.startswith(VARIABLE) and len(each) > len(VARIABLE) for each in variables)
    return enabled and reaper.catches(pid, signal.SIGABRT)
