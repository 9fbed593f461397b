"""Which processes do the work of a rank: the one that a shell waits for, and those that multiprocessing has started for it."""

from __future__ import annotations

import os

from mpilaunch.daemon.ranks import reaper

DEEPEST = 8
"""How many shells may wait for each other above the process that does the work of a rank."""
MOST_WORKERS = 8
"""Worker processes of one rank that are looked at."""


def worker_of(pid: int) -> int:
    """Return the process that works for a rank: the one that a shell waits for, where the rank is one."""
    for _ in range(DEEPEST):
        below = reaper.children(pid)
        if len(below) != 1 or waits_in(pid) != "do_wait":
            break
        pid = below[0]
    return pid


def program_of(pid: int) -> str:
    """Return the path of the file that a process runs, "" where it has gone or this user may not see it."""
    try:
        return os.readlink("/proc/%d/exe" % pid)
    except OSError:
        return ""


def waits_in(pid: int) -> str:
    """Return the function of the kernel that a process waits in, "" where it runs or where this user may not see it."""
    name = reaper.process_file(pid, "wchan").decode("ascii", "replace")
    return "" if name == "0" else name


def workers_of(pid: int) -> list[int]:
    """Return the processes that multiprocessing has started for one: forked ones, and others that run its module."""
    own = reaper.process_file(pid, "cmdline")

    def is_worker(child: int) -> bool:
        words = reaper.process_file(child, "cmdline")
        return words == own or (b"multiprocessing" in words and b"_tracker" not in words)

    return [child for child in reaper.descendants(pid) if is_worker(child)][:MOST_WORKERS]
