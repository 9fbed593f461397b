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


def become_subreaper() -> bool:
    """Make this process the parent of every orphan among its descendants; False where the kernel or ctypes cannot."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
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


def descendants() -> list[int]:
    """Return the process ids of all living descendants of this process, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            parent, state = _parent_and_state(int(entry))
            if state not in ("", "Z", "X"):
                children.setdefault(parent, []).append(int(entry))
    found = list(children.get(os.getpid(), ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def living_groups(groups: set[int]) -> set[int]:
    """Return those of the process groups that still have a member among the descendants of this process."""
    living: set[int] = set()
    for pid in descendants() if _has_children() else ():
        try:
            living.add(os.getpgid(pid))
        except ProcessLookupError:
            pass
    return living & groups


def kill_descendants() -> list[tuple[int, str]]:
    """Kill every descendant and wait until it is gone.

    Returns:
        (process id, command name) of each process that was killed.
    """
    killed: dict[int, str] = {}
    deadline = time.monotonic() + SWEEP_SECONDS
    pause = 0.001
    while True:
        reap()
        left = descendants() if _has_children() else []
        if not left or time.monotonic() > deadline:
            return sorted(killed.items())
        for pid in left:
            killed.setdefault(pid, command_name(pid))
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        # A killed process takes a moment to go, and what it was just forking shows up only then.
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


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


def _parent_and_state(pid: int) -> tuple[int, str]:
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            # The name stands in parentheses and may itself hold blanks and parentheses.
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return 0, ""
    return int(parent), state.decode("ascii")
