"""Which nodes are done, finished or lost; the job is over when they all are, and every rank has ended."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.ranks import Ranks
from mpilaunch.head.starting.world_starter import WorldStarter
from mpilaunch.job.state import JobState
from mpilaunch.wire.frames import WireError

MOST_SWEPT, LONGEST_NAME = 10_000, 64
"""How many orphaned processes the report lists, and how many characters of each name."""


class NodesDone:
    """The nodes of one job that are done.

    Attributes:
        lost: indexes in the allocation of the nodes that were lost.
        swept: the orphaned processes that the nodes have ended: (node, process id, name).
        started: the ranks have started; before, no job is over.
        over: set when the job is over.
    """

    def __init__(self, daemons: Daemons, ranks: Ranks, state: JobState, starter: WorldStarter) -> None:
        self.lost: set[int] = set()
        self.swept: list[tuple[str, int, str]] = []
        self.started = False
        self.over = asyncio.Event()
        self._daemons, self._ranks, self._state, self._starter = daemons, ranks, state, starter
        self._finished: dict[int, int] = {}
        self._done: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    def is_done(self, index: int) -> bool:
        """Return whether a node is lost or has finished all worlds that it was sent."""
        return index in self.lost or self._finished.get(index, 0) == self._starter.worlds_sent[index]

    async def wait(self, index: int) -> None:
        """Wait until a node is done with all worlds that it was sent."""
        await self._done[index].wait()

    def lose(self, index: int) -> None:
        """Record a node as lost."""
        self.lost.add(index)
        self._done[index].set()

    def take_finished(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Record that a node has ended its ranks, unless a further world is on its way to the node."""
        index = link.node.index
        sent = self._starter.worlds_sent[index]
        if message["worlds"] > sent:
            raise WireError(f"'finished' with {message['worlds']} worlds of {sent}")
        if message["worlds"] < sent or self.is_done(index):
            return
        unfinished = next((rank for rank in self._ranks.of_node(index) if rank not in self._state.finished), None)
        if unfinished is not None:
            raise WireError(f"'finished' before the end of rank {unfinished}")
        room = max(0, MOST_SWEPT - len(self.swept))
        self.swept += [(link.node.name, pid, name[:LONGEST_NAME]) for pid, name in message["swept"][:room]]
        self._finished[index] = message["worlds"]
        link.state = "finished"
        self._done[index].set()
        self.check()

    def check(self) -> None:
        """Find out whether the job is over."""
        # Once it is, every node that is released would look at all others.
        if self.started and not self.over.is_set() and self._state.ended and all(map(self.is_done, self._daemons.links)):
            self.over.set()
