"""A control group for the rows of crowded ranks, from `with` to its end.

Linux schedules the processes of a session as a group of their own (autogroup, see sched(7)), but only those in the root group
of the controller cpu: in a control group they are scheduled as with kernel.sched_autogroup_enabled=0.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")
REMOVE_SECONDS = 10.0


@contextlib.contextmanager
def control_group() -> Iterator[Path]:
    """Give a new control group; raises OSError where this process may make none."""
    group = cpu_hierarchy() / f"mpilaunch-bench-{os.getpid()}"
    group.mkdir()
    try:
        yield group
    finally:
        deadline = time.monotonic() + REMOVE_SECONDS
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.02)  # the kernel counts processes that are ending
        group.rmdir()


def cpu_hierarchy() -> Path:
    """Return the root of the controller cpu: of version 2, where its groups are made to have it, or of its own in version 1."""
    if not (MOUNTED / "cgroup.controllers").exists():
        return MOUNTED / "cpu"
    (MOUNTED / "cgroup.subtree_control").write_text("+cpu")
    return MOUNTED


def inside(group: Path) -> tuple[str, ...]:
    """Return the words before a command that run it in a group."""
    return ("sh", "-c", 'echo $$ >"$0" && exec "$@"', str(group / "cgroup.procs"))
