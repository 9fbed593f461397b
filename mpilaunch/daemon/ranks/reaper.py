"""The reaper: how each rank ended, and what it left behind.

A rank is the leader of a session and of a process group of its own. Signals go to the group; what has left the group is
still a descendant, because the daemon is a subreaper, and the sweep finds it in /proc. The sweep touches descendants only:
never another job, never a process by its name.
"""

from __future__ import annotations

import os
import signal
import time

PR_SET_CHILD_SUBREAPER = 36
SWEEP_SECONDS = 5.0
"""How long the sweep waits for killed processes to go; one that sits in the kernel (state D) cannot go sooner."""
PAUSE = 0.002
"""Seconds between two looks of the sweep."""


def become_subreaper() -> bool:
    """Make this process the parent of every orphan among its descendants; False where the kernel or ctypes cannot."""
    try:
        import ctypes  # some builds of Python do not have it

        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def reap() -> list[tuple[int, int]]:
    """Collect every child that has ended, as (process id, wait status), without waiting."""
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
    """Send a signal to the process group of a rank; nothing when the group is gone or is another user's."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def signal_catchers(number: int) -> None:
    """Send a signal to every descendant that catches it; the others would end of it."""
    for pid in descendants():
        if _catches(pid, number):
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                pass


def _catches(pid: int, number: int) -> bool:
    """Say whether a process has a handler for a signal."""
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
    """Return the same of another process."""
    found = _children(pid)
    for child in found:
        found.extend(_children(child))
    return [child for child in found if _state(child) not in ("", "Z", "X")]


def living_groups(groups: set[int]) -> set[int]:
    """Return those of the process groups that still have a member among the descendants of this process."""
    living: set[int] = set()
    for pid in descendants():
        try:
            living.add(os.getpgid(pid))
        except ProcessLookupError:
            pass
    return living & groups


def kill_descendants() -> list[tuple[int, str]]:
    """Kill every descendant and wait until it is gone.

    Returns:
        (process id, command name) of each process that was killed; one that cannot be is not among them.
    """
    killed: dict[int, str] = {}
    deadline = time.monotonic() + SWEEP_SECONDS
    # Not until nobody is seen, but until the kernel knows of no child: what forks and dies fast is never where one looks.
    while _has_children() and time.monotonic() < deadline:
        for pid in descendants():
            killed.setdefault(pid, command_name(pid))
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        if not reap():
            time.sleep(PAUSE)
    return sorted((pid, name) for pid, name in killed.items() if _state(pid) in ("", "Z", "X"))


def command_name(pid: int) -> str:
    """Return the kernel's short name of a process, "?" when it is gone."""
    try:
        with open("/proc/%d/comm" % pid, encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return "?"


def _has_children() -> bool:
    """Say whether this process has any child; the kernel knows without a walk through /proc."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False


def _children(pid: int) -> list[int]:
    """Return the children of a process, of all its threads."""
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
    """Return the kernel's letter for the state of a process, "" when it is gone."""
    return b"".join(_stat(pid)[:1]).decode("ascii")


def _stat(pid: int) -> list[bytes]:
    """Return state and parent of a process, nothing when it is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            # The name stands in parentheses and may itself hold blanks and parentheses.
            return file.read().rpartition(b")")[2].split()[:2]
    except OSError:
        return []
