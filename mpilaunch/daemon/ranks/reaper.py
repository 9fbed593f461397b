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


def become_subreaper(on: bool = True) -> bool:
    """Make this process the parent of orphaned descendants, or no longer; return whether kernel and ctypes support it."""
    try:
        import ctypes  # some builds of Python do not have it

        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) == 0)
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


def signal_catchers(number: int, reached: set[int]) -> None:
    """Send a signal to every further descendant that has a handler for it; it would end the others."""
    for pid in descendants():
        if pid not in reached and catches(pid, number):
            reached.add(pid)
            _send(os.kill, pid, number)


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    mask = process_file(pid, "status").partition(b"\nSigCgt:")[2].split(None, 1)[:1]
    return bool(mask) and bool(int(mask[0], 16) >> (number - 1) & 1)


def descendants(pid: int | None = None) -> list[int]:
    """Return the process ids of all living descendants of a process, by default this one, parents before children."""
    processes = children(pid or os.getpid())
    for child in processes:
        processes.extend(children(child))
    return [child for child in processes if state_of(child) not in ("", "Z", "X")]


def living_groups(groups: set[int]) -> set[int]:
    """Return the process groups that have a member among the descendants of this process."""
    living: set[int] = set()
    for pid in descendants():
        try:
            living.add(os.getpgid(pid))
        except ProcessLookupError:
            pass
    return living & groups


def group_lives(group: int) -> bool:
    """Return whether a process group has a living member, which need not be a descendant.

    An init that collects its children late, or as in many containers never, leaves members that have ended.
    """
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    states = [state_of(int(entry)) for entry in os.listdir("/proc") if entry.isdigit() and _is_member(int(entry), group)]
    return not states or any(state not in ("", "Z", "X") for state in states)


def _is_member(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except OSError:
        return False  # it has just gone


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
    return sorted((pid, name) for pid, name in killed.items() if state_of(pid) in ("", "Z", "X"))


def command_name(pid: int) -> str:
    """Return the kernel's short name of a process, "?" if it has gone."""
    return process_file(pid, "comm").decode("utf-8", "replace").rstrip("\n") or "?"


def process_file(pid: int, name: str) -> bytes:
    """Return the content of a file about a process in /proc, b"" if it has gone."""
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            return file.read()
    except OSError:
        return b""


def _has_children() -> bool:
    """Return whether this process has a child, without a walk through /proc."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    if not _KERNEL_LISTS_CHILDREN:
        return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and stat(int(entry))[1:2] == [b"%d" % pid]]
    try:
        threads = os.listdir("/proc/%d/task" % pid)
    except OSError:
        return []  # it has just gone
    return [int(child) for thread in threads for child in process_file(pid, "task/%s/children" % thread).split()]


_KERNEL_LISTS_CHILDREN = os.path.exists("/proc/self/task/%d/children" % os.getpid())


def state_of(pid: int) -> str:
    """Return the kernel's letter for the state of a process, "" if it has gone."""
    return b"".join(stat(pid)[:1]).decode("ascii")


def stat(pid: int) -> list[bytes]:
    """Return the members of /proc/PID/stat behind the name, of which the first are state and parent; none if it has gone."""
    # The name before them is in parentheses, and may contain blanks and parentheses.
    return process_file(pid, "stat").rpartition(b")")[2].split()
