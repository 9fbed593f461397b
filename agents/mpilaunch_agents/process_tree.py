"""The descendants of an agent's process and the members of its group, as far as they are alive.

An abort of 1,000 channels asks for those of each: only the processes concerned are looked at, where the kernel lists children
(CONFIG_PROC_CHILDREN).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_KERNEL_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def descendants(pid: int) -> set[psutil.Process]:
    """Return all descendants of a process, none if it is gone."""
    import psutil

    if not _KERNEL_LISTS_CHILDREN:
        with suppress(psutil.Error):
            return set(psutil.Process(pid).children(recursive=True))
    found: set[psutil.Process] = set()
    parents = [pid]
    while parents:
        parent = parents.pop()
        for child in _children(parent):
            with suppress(psutil.Error):
                process = psutil.Process(child)
                if process.ppid() == parent:  # else its id is another's by now
                    found.add(process)
                    parents.append(child)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to those processes that are still themselves."""
    import psutil

    for process in processes:
        with suppress(psutil.Error, ProcessLookupError):
            process.kill()


def parent_of(process: psutil.Process) -> int:
    """Return the process id of the parent, 0 if the process is gone."""
    import psutil

    with suppress(psutil.Error):
        return process.ppid()
    return 0


def has_members(group: int) -> bool:
    """Return whether a process other than its dead leader is alive in a group."""
    import psutil

    return any(pid != group and group_of(pid) == group and _is_alive(pid) for pid in psutil.pids())


def living_group(process: psutil.Process) -> int | None:
    """Return the group of a process, None if it is dead."""
    return group_of(process.pid) if _is_alive(process.pid) else None


def group_of(pid: int) -> int | None:
    """Return the group of a process, which may be dead; None if it is gone."""
    with suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None


def _is_alive(pid: int) -> bool:
    import psutil

    with suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
