"""The mapping policy: how ranks are distributed to nodes and slots. Pure data."""

from __future__ import annotations

from typing import NamedTuple

from mpilaunch.placement.topology import OBJECTS


class MappingPolicy(NamedTuple):
    """How the ranks of a job are mapped to nodes and numbered.

    Attributes:
        ranks: number of ranks, None for one per slot (or `per_node` on each node).
        map_by: "slot" fills one node after the other, "node" gives each node one rank in turn; an object (`topology.OBJECTS`)
            fills one node after the other, and gives each object of the node one rank in turn.
        per_node: exactly this many ranks on each node (`-N`, `--map-by ppr:N:node`); with `ranks`, at most this many.
        rank_by: "slot" numbers one node after the other, "node" gives each node a number in turn; an object numbers one node
            after the other, and gives each object of the node a number in turn; None follows `map_by`.
        oversubscribe: more ranks than slots are allowed (never more than max_slots).
        per_object: exactly this many ranks on each `map_by` object (`--map-by ppr:N:socket`); with `ranks`, at most this many.
        span: give each `map_by` object of all nodes one rank in turn, as if they were one node.
        rank_span: give each `rank_by` object of all nodes a number in turn.
        nolocal: no rank runs on this machine.
        listed: the `Node.index` of each rank, if a file lists them (`map_by` "rankfile" or "seq"), else empty.
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
        """Whether the map depends on the topology of the nodes, which must report it first."""
        return self.per_object is not None or (self.span and self.map_by in OBJECTS) or self.rank_span
