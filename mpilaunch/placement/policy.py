"""What the user asks of the map: how ranks are dealt to nodes and slots.

Pure data.
"""

from __future__ import annotations

from typing import NamedTuple

from mpilaunch.placement.topology import OBJECTS


class MappingPolicy(NamedTuple):
    """What the user asked for.

    Attributes:
        ranks: number of ranks, None for one per slot (or `per_node` on each node).
        map_by: "slot" fills a node before the next, "node" deals one rank to each node in turn; an object (`topology.OBJECTS`)
            fills nodes too, and deals the ranks of a node to its objects in turn.
        per_node: exactly this many ranks on each node (`-N`, `--map-by ppr:N:node`); with `ranks`, this many at most.
        rank_by: "slot" numbers the ranks of a node before those of the next, "node" deals numbers round the nodes; an object
            is "slot" between the nodes and takes turns inside each; None follows `map_by`.
        oversubscribe: more ranks than slots are allowed (never more than max_slots).
        per_object: exactly this many ranks on each `map_by` object (`--map-by ppr:N:socket`); with `ranks`, this many at most.
        span: deal the ranks to the objects of all nodes in turn, as if they were one node.
        rank_span: the `rank_by` objects of all nodes take turns to give the numbers.
        nolocal: no rank runs on this machine.
        listed: the node of each rank, by `Node.index`, when a file lists them (`map_by` "rankfile" or "seq"), else empty.
        file: that file; None for "seq" with the hostfile.
    """

    ranks: int | None = None
    map_by: str = "slot"
    per_node: int | None = None
    rank_by: str | None = None
    oversubscribe: bool = False
    per_object: int | None = None
    span: bool = False
    rank_span: bool = False
    nolocal: bool = False
    listed: tuple[int, ...] = ()
    file: str | None = None

    @property
    def needs_topology(self) -> bool:
        """Whether the map depends on what the nodes are made of, so that they must be asked before there is one."""
        return self.per_object is not None or (self.span and self.map_by in OBJECTS) or self.rank_span
