"""Where the programs run: nodes and their slots, filled one node after the other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Nodes with their slots.

    Attributes:
        name: in the tables.
        nodes: host and slots of each; `local` is the machine that the launcher runs on.
    """

    name: str
    nodes: tuple[tuple[str, int], ...]

    @property
    def slots(self) -> int:
        """All slots."""
        return sum(slots for _, slots in self.nodes)

    @property
    def remote(self) -> bool:
        """Whether it has hosts that are reached over the network."""
        return self.nodes[0][0] != "local"

    @property
    def only_ours(self) -> bool:
        """Whether only mpilaunch knows such a place: two nodes that are one machine."""
        return len(self.nodes) > 1 and not self.remote

    def layout(self, head: str) -> list[tuple[str, range]]:
        """Return the host name and the ranks of each node when every slot has one; `head` is this machine's name."""
        firsts = [sum(slots for _, slots in self.nodes[:index]) for index in range(len(self.nodes))]
        return [
            (head if host == "local" else host, range(first, first + slots))
            for first, (host, slots) in zip(firsts, self.nodes, strict=True)
        ]


def _hosts(count: int, slots: int) -> Place:
    name = f"{count} hosts x {slots}"
    return Place(name, tuple((f"node{number:02}", slots) for number in range(1, count + 1)))


ALONE = tuple(Place(str(ranks), (("local", ranks),)) for ranks in (1, 2, 4, 8, 16))
TWO_LOCAL = Place("2 local nodes x 2", (("local", 2), ("local", 2)))
REMOTE = (_hosts(2, 1), _hosts(2, 2), _hosts(3, 1), _hosts(4, 1), _hosts(4, 4))
PLACES = {place.name: place for place in (*ALONE, TWO_LOCAL, *REMOTE)}
