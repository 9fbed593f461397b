"""What the kernel tells of a rank that may hang: the state of its process, what that waits in, and its use of a CPU (proc(5)).

CPU use is a difference, so an observation takes two looks. Nothing is sent to a process: a rank runs on unharmed.
"""

from __future__ import annotations

import os
import time

from mpilaunch.daemon.ranks import reaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BETWEEN = 0.5
"""Seconds between the two looks."""
DEEPEST = 8
"""How many shells may wait for each other above the process that does the work of a rank."""
_TICKS = os.sysconf("SC_CLK_TCK")
_UTIME, _STIME = 11, 12
"""Places of two members of /proc/PID/stat behind the name."""


class Look:
    """The first look at the processes of ranks, and what a second one adds.

    Args:
        ranks: process id -> rank.
    """

    def __init__(self, ranks: dict[int, int]) -> None:
        self._began = time.monotonic()
        self._used = {pid: _seconds_used(pid) for pid in ranks}
        self._ranks = dict(ranks)

    def again(self) -> list[list[Any]]:
        """Return a row for each rank that still runs: rank, process id, state, CPUs in use, what it waits in, processes.

        The state is the kernel's letter. It is that of the process that works where a rank is a shell that waits for one. What
        it waits in is the name of a function of the kernel, "" where it runs, or where this user may not see it.
        """
        passed = max(time.monotonic() - self._began, 1e-3)
        rows: list[list[Any]] = []
        for pid, rank in self._ranks.items():
            worker = worker_of(pid)
            state = reaper.state_of(worker)
            if state:
                used = max(0.0, _seconds_used(pid) - self._used[pid]) / passed
                rows.append([rank, worker, state, round(used, 2), _wait(worker), 1 + len(reaper.descendants(pid))])
        return rows


def worker_of(pid: int) -> int:
    """Return the process that works for a rank: the one that a shell waits for, where the rank is one."""
    for _ in range(DEEPEST):
        below = reaper.children(pid)
        if len(below) != 1 or _wait(pid) != "do_wait":
            break
        pid = below[0]
    return pid


def _seconds_used(pid: int) -> float:
    """Return the CPU time that a process and its living descendants have used."""
    stats = [reaper.stat(each) for each in (pid, *reaper.descendants(pid))]
    return sum(int(stat[_UTIME]) + int(stat[_STIME]) for stat in stats if len(stat) > _STIME) / _TICKS


def _wait(pid: int) -> str:
    name = reaper.process_file(pid, "wchan").decode("ascii", "replace")
    return "" if name == "0" else name
