"""Which ranks have called MPI_Init: it returns when all ranks of a world have called it.

A rank that has ended, or does not come within `--mpi-init-timeout`, would keep the others waiting for ever: it is named, and
the job ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mpilaunch.errors import ExitCode
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.ranks import Ranks
from mpilaunch.hosts.nodeset import fold, name_ranks
from mpilaunch.job.spec import Deadlines
from mpilaunch.job.verdict import Verdict
from mpilaunch.wire.frames import WireError


class _Calls:
    """The calls of MPI_Init in one world.

    Attributes:
        began: when the head heard of the first, by the loop's clock.
        nodes: on which a rank has called it.
        absent: the ranks that have not, of each of these nodes that has said so.
        noted: whether the user was told of ranks that others wait for.
    """

    def __init__(self, began: float) -> None:
        self.began, self.noted = began, False
        self.nodes: set[int] = set()
        self.absent: dict[int, list[int]] = {}


class MpiInit:
    """The calls of MPI_Init in one job; its handlers raise WireError for a wrong message.

    Attributes:
        missed: the ranks that have ended without calling it and that others in it wait for.
    """

    def __init__(
        self, deadlines: Deadlines, ranks: Ranks, say: Callable[[str], None], end: Callable[[Verdict], None]
    ) -> None:
        self._deadlines, self._ranks, self._say, self._end = deadlines, ranks, say, end
        self._worlds: dict[str, _Calls] = {}
        self._outside: set[int] = set()
        self.missed: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle] = []

    def close(self) -> None:
        """Cancel the timers, since the job ends."""
        for timer in self._timers:
            timer.cancel()

    def join(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Record that the first rank of a world on this node has called MPI_Init."""
        name = message["world"]
        self._ranks.check_world(name, link.node.index)
        if name not in self._worlds:
            self._worlds[name] = _Calls(self._loop.time())
            self.missed |= self._outside.intersection(self._ranks.of_world(name))
            for seconds in (self._deadlines.mpi_init_notice, self._deadlines.mpi_init):
                self._timers.append(self._loop.call_later(seconds, self._check_waiting, name))
        self._worlds[name].nodes.add(link.node.index)

    def take_absent(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Record which ranks of a node have not called MPI_Init."""
        name, node = message["world"], link.node.index
        absent = [self._ranks.own_rank(name, rank, node) for rank in message["absent"]]
        if name not in self._worlds or node not in self._worlds[name].nodes:
            raise WireError("'waiting' for a world that it has not joined")
        self._worlds[name].absent[node] = absent
        self._check_waiting(name)

    def ended_outside(self, rank: int) -> None:
        """Record that a rank has ended that had never called MPI_Init."""
        self._outside.add(rank)
        if any(rank in self._ranks.of_world(name) for name in self._worlds):
            self.missed.add(rank)

    def has_joined(self, name: str) -> bool:
        """Return whether every node of a world has reported that a rank called MPI_Init there."""
        joined = self._worlds[name].nodes if name in self._worlds else set()
        return joined >= {self._ranks.place(rank).node for rank in self._ranks.of_world(name)}

    def _check_waiting(self, name: str) -> None:
        """Name the ranks that others in MPI_Init wait for, and end the job when that takes too long."""
        calls, limit = self._worlds[name], self._deadlines.mpi_init
        waited = self._loop.time() - calls.began
        absent = self._describe_absent(name, calls)
        if not absent or waited < self._deadlines.mpi_init_notice:
            return
        text = f"{absent} not called MPI_Init, where the others have waited for"
        if limit and waited >= limit:
            detail = f"{text} {limit:g} s (--mpi-init-timeout)"
            self._end(Verdict(ExitCode.TIMEOUT, "timeout", detail=detail))
        elif not calls.noted:
            calls.noted = True
            self._say(f"{text} {waited:.0f} s")

    def _describe_absent(self, name: str, calls: _Calls) -> str:
        """Return "ranks 2-3 on node02 have" for the ranks not known to be in MPI_Init, or ""."""
        places = ((rank, self._ranks.place(rank).node) for rank in self._ranks.of_world(name))
        absent = [rank for rank, node in places if node not in calls.nodes or rank in calls.absent.get(node, ())]
        if not absent:
            return ""
        nodes = fold(self._ranks.node_name(rank) for rank in absent)
        return f"{name_ranks(absent)} on {nodes} {'has' if len(absent) == 1 else 'have'}"
