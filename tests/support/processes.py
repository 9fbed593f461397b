"""No process is left behind: what every test is held to.

Each process that the tests start, however deep and in whatever session, inherits a mark in its environment. The hosts of the
testbed start what sshd is asked to without that mark: there, everything counts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Collection
from pathlib import Path

from tests.support.hosts import Hosts

MARK = "TESTS_OF_MPILAUNCH"
GRACE = 5.0
"""Seconds that a process which has been killed, or whose head is gone, may take to be gone itself."""


def mark_environment() -> None:
    """Mark this process's children from now on; runs at the same time on one machine do not see each other's."""
    os.environ[MARK] = uuid.uuid4().hex


def everything() -> set[int]:
    """Return the process ids of this machine."""
    return {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}


def ours(before: Collection[int]) -> dict[int, str]:
    """Return the processes since `before` that bear our mark, and our children even when they are dead and not reaped."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    children = _children(os.getpid())
    found = {}
    for pid in everything().difference(before):
        with contextlib.suppress(OSError):
            if pid in children or mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found[pid] = _describe(pid)
    return found


def left_behind(before: Collection[int], look: Callable[[Collection[int]], dict[int, str]] = ours) -> dict[int, str]:
    """Return the processes that were not there before and do not go away."""
    deadline = time.monotonic() + GRACE
    while True:
        left = look(before)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def parent(pid: int) -> int:
    """Return the process id of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def gone(hosts: Hosts, name: str) -> bool:
    """Tell whether nothing is left on a host, within the time that a node takes to notice that its head is gone."""
    return not left_behind((), lambda _: {pid: str(argv) for pid, argv in hosts.processes(name)})


def guard_and_daemon_on(hosts: Hosts, name: str) -> tuple[int, int]:
    """Return the process ids of the guard and of the daemon of a host. The daemon may have a helper for PMIx as its child."""
    pids = [pid for pid, argv in hosts.processes(name) if "-I" in argv and "mpilaunch.daemon" in " ".join(argv)]
    (guard,) = [pid for pid in pids if parent(pid) not in pids]
    (daemon,) = [pid for pid in pids if parent(pid) == guard]
    return guard, daemon


def kill_daemon(hosts: Hosts, name: str) -> None:
    """Send SIGKILL to the daemon of a host."""
    os.kill(guard_and_daemon_on(hosts, name)[1], signal.SIGKILL)


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _describe(pid: int) -> str:
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
    except OSError:
        return "gone"
    return argv.decode(errors="replace")[:200] or "dead, and not reaped"
