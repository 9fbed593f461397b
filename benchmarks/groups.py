"""A control group for the rows of crowded ranks, from `with` to its end.

Linux schedules the processes of a session as a group of their own (autogroup, see sched(7)), but only those in the root group
of the controller cpu: in a control group they are scheduled as with kernel.sched_autogroup_enabled=0.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.support import cgroups


@contextlib.contextmanager
def control_group() -> Iterator[Path]:
    """Give a new control group; raises OSError where this process may make none."""
    hierarchy, name = cpu_hierarchy(), f"mpilaunch-bench-{os.getpid()}"
    cgroups.make(name)
    try:
        yield hierarchy / name
    finally:
        cgroups.remove(name)


def cpu_hierarchy() -> Path:
    """Return the root of the controller cpu: of version 2, where its groups are made to have it, or of its own in version 1."""
    if not (cgroups.MOUNTED / "cgroup.controllers").exists():
        return cgroups.MOUNTED / "cpu"
    (cgroups.MOUNTED / "cgroup.subtree_control").write_text("+cpu")
    return cgroups.MOUNTED


def inside(group: Path) -> tuple[str, ...]:
    """Return the words before a command that run it in a group."""
    return ("sh", "-c", 'echo $$ >"$0" && exec "$@"', str(group / "cgroup.procs"))
