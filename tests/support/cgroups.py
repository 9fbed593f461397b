"""A control group of a cluster's own, in every hierarchy that this machine has: what the cluster runs sits below it."""

from __future__ import annotations

import os
import time
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")
REMOVE_SECONDS = 10.0


def hierarchies() -> list[Path]:
    """Return where the hierarchies are mounted: one of version 2, else one per controller."""
    if (MOUNTED / "cgroup.controllers").exists():
        return [MOUNTED]
    return [path for path in sorted(MOUNTED.iterdir()) if path.is_dir() and not path.is_symlink() and os.path.ismount(path)]


def make(name: str) -> None:
    """Make the group."""
    for hierarchy in hierarchies():
        group = hierarchy / name
        group.mkdir()
        for file in ("cpuset.cpus", "cpuset.mems"):
            # Of version 1: empty in a new group, which then takes no process.
            if (group / file).exists():
                (group / file).write_text((hierarchy / file).read_text())


def remove(name: str) -> None:
    """Remove the group and all below it, whose processes have been ended; raises OSError for what does not go."""
    deadline = time.monotonic() + REMOVE_SECONDS
    for hierarchy in hierarchies():
        top = hierarchy / name
        for folder, _, _ in os.walk(top, topdown=False):
            while True:
                try:
                    os.rmdir(folder)
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    # The kernel counts processes that are ending.
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
