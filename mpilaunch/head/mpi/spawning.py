"""Worlds that ranks start by MPI_Comm_spawn, one at a time, in the order asked for.

A failure is reported to the rank that asked and does not end the job.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from mpilaunch.errors import LaunchError
from mpilaunch.head.mpi.answers import MAX_REQUESTS, answer
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import LONGEST_NOTE, NodeLink
from mpilaunch.head.ranks import Ranks
from mpilaunch.head.starting.world_starter import WorldStarter
from mpilaunch.head.tasks import start
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState
from mpilaunch.job.worlds import WITHOUT_EFFECT, spawned_world


class Spawning:
    """The spawned worlds of one job.

    Args:
        has_joined: tells whether a world has passed MPI_Init on every node.
        crashed: called with a fault of our own.
    """

    def __init__(
        self,
        job: JobSpec,
        daemons: Daemons,
        ranks: Ranks,
        state: JobState,
        starter: WorldStarter,
        has_joined: Callable[[str], bool],
        say: Callable[[str], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._job, self._daemons, self._ranks, self._state, self._starter = job, daemons, ranks, state, starter
        self._has_joined, self._say, self._crashed = has_joined, say, crashed
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._noted: set[str] = set()
        self._closed = False

    def close(self) -> None:
        """Start no further world, since the job ends."""
        self._closed = True
        for task in self._tasks:
            task.cancel()

    def spawn(self, link: NodeLink, ask: dict[str, Any]) -> None:
        """Start a world for a rank of this node; raise WireError if the rank is not this node's."""
        error = ""
        if not self._state.is_alive(self._ranks.own_rank(ask["world"], ask["rank"], link.node.index)):
            error = "the rank has ended"
        elif self._closed:
            error = "the job ends"
        elif len(self._tasks) >= MAX_REQUESTS:
            error = "too many spawns wait"
        elif not self._has_joined(ask["world"]):
            # MPI_Init is collective. In a job without MPI, a node could otherwise run commands on the others.
            error = "its world has not passed MPI_Init on every node"
        if error:
            answer(link, ask, error=error)
        else:
            start(self._tasks, self._spawn(link, ask), self._crashed)

    async def _spawn(self, link: NodeLink, ask: dict[str, Any]) -> None:
        async with self._one_at_a_time:
            ranks, starter = self._ranks, self._starter
            for key in sorted({key for app in ask["apps"] for key in app["info"]} & WITHOUT_EFFECT.keys() - self._noted):
                self._noted.add(key)
                self._say(f"the info key {key} of MPI_Comm_spawn has no effect: {WITHOUT_EFFECT[key]}")
            try:
                count = sum(world.size for world in ranks.worlds)
                living = [ranks.place(rank) for rank in range(count) if self._state.is_alive(rank)]
                world = spawned_world(self._job, ranks.worlds, ask, living)
                nodes = [self._job.allocation.nodes[index] for index in world.job_map.nodes]
                await self._daemons.join(nodes, self._job.deadlines.start)
                starter.introduce(world)
                await starter.prepare(world)
                starter.add(world)
            except LaunchError as error:
                if link.may_note():
                    self._say(f"MPI_Comm_spawn failed: {error}"[:LONGEST_NOTE])
                answer(link, ask, error=str(error))
                return
            starter.launch([world])
            counts = Counter(place.app for place in world.job_map.placements)
            answer(link, ask, world=world.name, counts=[counts[app] for app in range(len(world.apps))])
