"""One node of a world for the tests of PMI: ranks that speak, and all that they and the head hear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpilaunch.daemon.mpi.pmi import PmiWorld
from mpilaunch.daemon.mpi.pmi1 import Pmi1

INIT = "cmd=init pmi_version=1 pmi_subversion=1"


@dataclass
class Node:
    """One node's part of a world, with all that it says."""

    ranks: Sequence[int] = (0, 1)
    size: int = 2
    blocks: list[list[int]] = field(default_factory=lambda: [[0, 2, 2]])
    universe_size: int = 16
    parent: str = ""
    pairs: dict[str, str] = field(default_factory=dict)
    heard: dict[int, list[str]] = field(default_factory=dict)
    collectives: list[tuple[Any, int, dict[str, str]]] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    aborts: list[tuple[int, int]] = field(default_factory=list)
    connected: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.collective_done: list[Callable[[dict[str, Any]], None]] = []
        self.ask_done: list[Callable[[dict[str, Any]], None]] = []
        description = {
            "world": "job",
            "size": self.size,
            "pmi_universe_size": self.universe_size,
            "blocks": self.blocks,
            "parent": self.parent,
            "pairs": self.pairs,
        }
        self.world = PmiWorld(
            description,
            dict.fromkeys(self.ranks, 0),
            self._collective,
            self._ask,
            lambda rank, code: self.aborts.append((rank, code)),
            self.connected.append,
        )
        self.connections = {rank: Pmi1(self.world, rank, self._hears(rank)) for rank in self.ranks}

    @property
    def fences(self) -> list[tuple[int, dict[str, str]]]:
        """How many ranks were told to the head to wait, and what they had put."""
        return [(ranks, pairs) for _, ranks, pairs in self.collectives]

    def receive(self, rank: int, data: bytes) -> None:
        """Let a rank say bytes."""
        self.connections[rank].receive(data)

    def say(self, rank: int, *lines: str) -> list[str]:
        """Let a rank say lines; return the lines that it hears for it."""
        before = len(self.heard.get(rank, ()))
        self.receive(rank, "".join(f"{line}\n" for line in lines).encode("latin-1"))
        return self.lines(rank)[before:]

    def lines(self, rank: int) -> list[str]:
        """Return all lines that a rank has heard."""
        answers = self.heard.get(rank, [])
        assert all(answer.endswith("\n") and answer.count("\n") == 1 for answer in answers)
        return [answer[:-1] for answer in answers]

    def init(self) -> Node:
        """Let all ranks begin."""
        for rank in self.ranks:
            self.say(rank, INIT)
        return self

    def ended(self, rank: int) -> str:
        """Let a rank end; return how far it came."""
        self.world.end(rank)
        return self.world.states[rank]

    def _hears(self, rank: int) -> Callable[[bytes], None]:
        return lambda data: self.heard.setdefault(rank, []).append(data.decode("latin-1"))

    def _collective(
        self, kind: str, members: list[Any], ranks: int, data: Any, done: Callable[[dict[str, Any]], None]
    ) -> None:
        assert kind.startswith("pmi ")
        self.collectives.append((members, ranks, dict(data)))
        self.collective_done.append(done)

    def _ask(self, what: str, details: dict[str, Any], done: Callable[[dict[str, Any]], None]) -> None:
        self.asked.append((what, details))
        self.ask_done.append(done)
