"""What the kernel tells of a rank that may hang: the state of its process, what that waits in, and its use of a CPU (proc(5)).

CPU use is a difference, so an observation takes two looks. Nothing is sent to a process: a rank runs on unharmed.
"""

from __future__ import annotations

import os
import time

from mpilaunch.daemon.observe.workers import waits_in, worker_of
from mpilaunch.daemon.ranks import reaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BETWEEN = 0.5
"""Seconds between the two looks."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGESIZE")
_UTIME, _STIME, _RSS = 11, 12, 21
"""Places of members of /proc/PID/stat behind the name."""


class Look:
    """The first look at the processes of ranks, and what a second one adds.

    Args:
        ranks: process id -> rank.
    """

    def __init__(self, ranks: dict[int, int]) -> None:
        self._began = time.monotonic()
        self._used = {pid: _use(pid)[0] for pid in ranks}
        self._ranks = dict(ranks)

    def again(self) -> list[list[Any]]:
        """Return a row for each rank that still runs: rank, process id, state, CPUs in use, what it waits in, processes,
        seconds of CPU time, bytes of memory.

        The state is the kernel's letter. It is that of the process that works where a rank is a shell that waits for one. What
        it waits in is the name of a function of the kernel, "" where it runs, or where this user may not see it. Time and
        memory are those of the rank's living processes together.
        """
        passed = max(time.monotonic() - self._began, 1e-3)
        rows: list[list[Any]] = []
        for pid, rank in self._ranks.items():
            worker = worker_of(pid)
            state = reaper.state_of(worker)
            if state:
                used, memory, processes = _use(pid)
                cpus = max(0.0, used - self._used[pid]) / passed
                rows.append([rank, worker, state, round(cpus, 2), waits_in(worker), processes, round(used, 2), memory])
        return rows


def _use(pid: int) -> tuple[float, int, int]:
    """Return what a process and its living descendants use: seconds of CPU time so far, resident bytes, and their number."""
    stats = [stat for stat in map(reaper.stat, (pid, *reaper.descendants(pid))) if len(stat) > _RSS]
    ticks = sum(int(stat[_UTIME]) + int(stat[_STIME]) for stat in stats)
    return ticks / _TICKS, _PAGE * sum(int(stat[_RSS]) for stat in stats), len(stats)
