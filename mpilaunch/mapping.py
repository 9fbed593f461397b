"""Mapping and ranking: which rank runs in which slot of which node.

Pure: an allocation and a policy give a job map, or an error that lists the slots counted per node.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """Where one rank runs.

    Attributes:
        rank: place in the job, from 0.
        node: `Node.index` in the allocation.
        local_rank: place among the job's ranks on that node, from 0.
        slot: index into `Node.slots`; it may repeat on a node only when the job oversubscribes.
    """

    rank: int
    node: int
    local_rank: int
    slot: int


@dataclass(frozen=True)
class JobMap:
    """The placements in rank order, and the indices of the nodes that run at least one rank, in node order."""

    placements: tuple[Placement, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class MappingPolicy:
    """What the user asked for.

    Attributes:
        ranks: number of ranks, None for one per slot (or `per_node` on each node).
        map_by: "slot" fills a node before the next, "node" deals one rank to each node in turn.
        per_node: exactly this many ranks on each node (`-N`, `--map-by ppr:N:node`).
        rank_by: "slot" numbers the ranks in the order of mapping, "node" deals numbers round the nodes, None follows
            `map_by`.
        oversubscribe: more ranks than slots are allowed (never more than max_slots).
    """

    ranks: int | None = None
    map_by: str = "slot"
    per_node: int | None = None
    rank_by: str | None = None
    oversubscribe: bool = False
