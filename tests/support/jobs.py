"""Jobs that are built without a command line."""

from __future__ import annotations

from typing import Any

from mpilaunch.hosts.allocation import Allocation, Node, Slot
from mpilaunch.job.spec import App, JobSpec
from mpilaunch.placement.mapping import MappingPolicy, map_ranks


def job_of_slots(*slots: int, ranks: int, **members: Any) -> JobSpec:
    """Return a job of one program on nodes n0, n1 and so on with these numbers of slots."""
    nodes = tuple(Node(index, f"n{index}", (Slot(),) * count, "ssh") for index, count in enumerate(slots))
    allocation = Allocation(nodes, "hosts.txt")
    return JobSpec("00c0ffee00c0ffee", (App(("prog",)),), allocation, map_ranks(allocation, MappingPolicy(ranks)), **members)
