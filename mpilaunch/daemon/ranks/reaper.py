"""Signal, find and reap the descendants of this process.

A rank leads a session and a process group of its own. Signals go to the group. A process that has left the group is still a
descendant, because the daemon is a subreaper, and is found in /proc. This module signals descendants only: never another
job, never a process by its name.
"""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_CHILD_SUBREAPER = 36
SWEEP_SECONDS = 5.0
"""How long to wait for killed processes; one that is stuck in the kernel (state D) may need longer."""
PAUSE = 0.002
"""Seconds between two checks for remaining children."""


def become_subreaper() -> bool:
    """Make this process the parent of orphaned descendants; return whether kernel and ctypes support it."""
    try:
        import ctypes  # some builds of Python do not have it

        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def reap() -> list[tuple[int, int]]:
    """Collect all ended children, as (process id, wait status), without waiting."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the process group of a rank, if it exists and is this user's."""
    _send(os.killpg, pid, number)


def _send(kill: Callable[[int, int], None], pid: int, number: int) -> None:
    try:
        kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def signal_catchers(number: int) -> None:
    """Send a signal to every descendant that has a handler for it; it would end the others."""
    for pid in descendants():
        if _catches(pid, number):
            _send(os.kill, pid, number)


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        with open("/proc/%d/status" % pid, "rb") as file:
            mask = file.read().partition(b"\nSigCgt:")[2].split(None, 1)[0]
    except (OSError, IndexError):
        return False
    return bool(int(mask, 16) >> (number - 1) & 1)


def descendants() -> list[int]:
    """Return the process ids of all living descendants of this process, parents before children."""
    return descendants_of(os.getpid())


def descendants_of(pid: int) -> list[int]:
    """Return the living descendants of a process, parents before children."""
    processes = _children(pid)
    for child in processes:
        processes.extend(_children(child))
    return [child for child in processes if _state(child) not in ("", "Z", "X")]


def living_groups(groups: set[int]) -> set[int]:
    """Return the process groups that have a member among the descendants of this process."""
    living: set[int] = set()
    for pid in descendants():
        try:
            living.add(os.getpgid(pid))
        except ProcessLookupError:
            pass
    return living & groups


def kill_descendants() -> list[tuple[int, str]]:
    """Kill all descendants and wait for their end; return (process id, command name) of those that were killed."""
    killed: dict[int, str] = {}
    deadline = time.monotonic() + SWEEP_SECONDS
    # Ask the kernel whether children remain: /proc may not show a process that forks and exits quickly.
    while _has_children() and time.monotonic() < deadline:
        for pid in descendants():
            killed.setdefault(pid, command_name(pid))
            _send(os.kill, pid, signal.SIGKILL)
        if not reap():
            time.sleep(PAUSE)
    return sorted((pid, name) for pid, name in killed.items() if _state(pid) in ("", "Z", "X"))


def command_name(pid: int) -> str:
    """Return the kernel's short name of a process, "?" if it has gone."""
    try:
        with open("/proc/%d/comm" % pid, encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return "?"


def _has_children() -> bool:
    """Return whether this process has a child, without a walk through /proc."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    if not _KERNEL_LISTS_CHILDREN:
        return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _stat(int(entry))[1:] == [b"%d" % pid]]
    children: list[int] = []
    try:
        for thread in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, thread), "rb") as file:
                children += map(int, file.read().split())
    except OSError:
        pass  # it has just gone
    return children


_KERNEL_LISTS_CHILDREN = os.path.exists("/proc/self/task/%d/children" % os.getpid())


def _state(pid: int) -> str:
    """Return the kernel's letter for the state of a process, "" if it has gone."""
    return b"".join(_stat(pid)[:1]).decode("ascii")


def _stat(pid: int) -> list[bytes]:
    """Return state and parent of a process, an empty list if it has gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            # The name is in parentheses, and may contain blanks and parentheses.
            return file.read().rpartition(b")")[2].split()[:2]
    except OSError:
        return []
