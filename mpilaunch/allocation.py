"""The allocation: the nodes and slots that this job may use.

Pure. A node's identity is its place in the allocation (`index`), never its name: two nodes may bear one name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Slot:
    """The right to run one rank on a node.

    Attributes:
        gpus: GPU indices or UUIDs of this slot, in order; None when nothing was said; empty for no GPU.
        cpus: CPU numbers of this slot; None when nothing was said.
        rank: the rank that must take this slot, when a slot map says so.
    """

    gpus: tuple[str, ...] | None = None
    cpus: tuple[int, ...] | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Node:
    """One machine (or pod) that may run ranks.

    Attributes:
        index: place in the allocation, from 0: the node's identity.
        name: as the user wrote it.
        slots: in slot order.
        agent: name of the agent or command template that reaches it ("local", "ssh", "tsh ssh {host} {command}").
        max_slots: hard limit on ranks, None for none.
        user: login name for the agent.
        port: port for the agent.
        origin: where the user named it: "hosts.txt:3", "--host", "SLURM_JOB_NODELIST".
    """

    index: int
    name: str
    slots: tuple[Slot, ...]
    agent: str
    max_slots: int | None = None
    user: str | None = None
    port: int | None = None
    origin: str = ""


@dataclass(frozen=True)
class Allocation:
    """The nodes in order, and where they came from ("hosts.txt", "--host", "Slurm job 42", "this machine").

    `elastic_slots` is True when nobody said how many slots there are (this machine, no hosts given): then any number of
    ranks fits.
    """

    nodes: tuple[Node, ...]
    source: str
    elastic_slots: bool = False
