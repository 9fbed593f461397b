"""The worlds of a job as PMIx knows them on one node: the ranks of each node, and which of them are here."""

from __future__ import annotations

from mpilaunch.wire.frames import WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class PmixWorlds:
    """The registered worlds; `known` has the argument of `HelperProcess.register` for each, by its name."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}

    def add(self, description: dict[str, Any]) -> dict[str, Any]:
        """Add a world, the `mpi` member of `prepare`; return the argument of `HelperProcess.register`."""
        world = self.known[description["world"]] = _registration(description)
        return world

    def has(self, world: str, rank: int) -> bool:
        """Return whether there is such a rank; -1 is all of a world."""
        return world in self.known and -1 <= rank < self.known[world]["size"]

    def local(self, world: str) -> list[int]:
        """Return the ranks of a world on this node; raises KeyError."""
        known = self.known[world]
        return [] if known["node"] is None else known["ranks_by_node"][known["node"]]

    def check_rank(self, world: str, rank: int) -> None:
        """Raise WireError unless the rank is on this node."""
        if world not in self.known or rank not in self.local(world):
            raise WireError("rank %d of world %.100r is not on this node" % (rank, world))


def _registration(description: dict[str, Any]) -> dict[str, Any]:
    """Return the argument of `HelperProcess.register`."""
    ranks_by_node: list[list[int]] = [[] for _ in description["hosts"]]
    rank = 0
    for first, nodes, each in description["blocks"]:
        for node in range(first, first + nodes):
            ranks_by_node[node] += range(rank, rank + each)
            rank += each
    return {
        "name": description["world"],
        "namespace": description["namespace"],
        "size": description["size"],
        "universe_size": description["universe_size"],
        "hosts": description["hosts"],
        "ranks_by_node": ranks_by_node,
        "node": description["node"],
        "appnums": [app for app, size in enumerate(description["app_sizes"]) for _ in range(size)],
        "spawned": bool(description["parent"]),
    }
