"""The order in which the roles of a job start, and its end when only ranks are left that end with others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from mpilaunch.errors import ExitCode
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.ranks import Ranks
from mpilaunch.head.starting.world_starter import WorldStarter
from mpilaunch.job.roles import conditions, followers, world_of
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState
from mpilaunch.job.verdict import Verdict


class StartOrder:
    """Starts the roles of a job in their order, and ends those that serve others, or end with others, when no other is left.

    A role waits until rank 0 of each role that it names after `--after` listens on its port. `end` is `Stop.begin`.
    """

    def __init__(
        self,
        job: JobSpec,
        daemons: Daemons,
        ranks: Ranks,
        state: JobState,
        starter: WorldStarter,
        end: Callable[[Verdict | None], None],
    ) -> None:
        self._daemons, self._ranks, self._state, self._starter, self._end = daemons, ranks, state, starter, end
        self._seconds = job.deadlines.start
        self._awaited: dict[tuple[int, int], tuple[str, asyncio.TimerHandle]] = {}
        self._listening: set[tuple[str, int]] = set()
        self._some_follow = bool(followers(ranks.worlds))
        self._others = set(self._waited_for()) if self._some_follow else set()

    async def prepare(self) -> None:
        """Prepare all roles, before the first one starts; raises LaunchError when a node refuses."""
        await self._starter.prepare_job()

    def launch(self) -> None:
        """Start the roles that wait for nothing more."""
        self._starter.launch([world for world in self._starter.waiting if conditions(world) <= self._listening])
        waiting = self._starter.waiting
        loop = asyncio.get_running_loop()
        for role, port in sorted(frozenset[tuple[str, int]]().union(*map(conditions, waiting)) - self._listening):
            world = world_of(self._ranks.worlds, role)
            if world not in waiting and (world.first, port) not in self._awaited:
                timer = loop.call_later(self._seconds, self._give_up, world.first, port)
                self._awaited[world.first, port] = role, timer
                node = self._ranks.place(world.first).node
                self._daemons.links[node].send({"type": "await", "rank": world.first, "port": port})

    def take_listening(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Record that rank 0 of a role listens on a port, and start the roles that waited for it."""
        rank, port = message["rank"], message["port"]
        self._ranks.check_rank(rank, link.node.index)
        if (rank, port) in self._awaited:
            role, timer = self._awaited.pop((rank, port))
            timer.cancel()
            self._listening.add((role, port))
            self.launch()

    def rank_ended(self, rank: int, *, failed: bool) -> None:
        """End the job when others wait in vain for this rank to listen, or when only ranks that serve others are left."""
        self._others.discard(rank)
        for (awaited, port), (role, _) in list(self._awaited.items()):
            if awaited == rank:
                detail = f"rank 0 of the role '{role}' on {self._ranks.node_name(rank)} ended before it listened on port {port}"
                hint = f"--after {role}:{port} needs a program that stays and listens there"
                self._end(None if failed else Verdict(ExitCode.START_FAILED, "role-not-ready", detail=detail, hint=hint))
        if self._some_follow and not self._others and not any(map(self._state.is_alive, self._waited_for())):
            self._end(None)

    def _waited_for(self) -> Iterable[int]:
        """Return the ranks that the job waits for, with those that they have spawned."""
        worlds = self._ranks.worlds
        following = followers(worlds)
        ranks = chain.from_iterable(self._ranks.of_world(world.name) for world in worlds)
        return (rank for rank in ranks if rank not in following)

    def _give_up(self, rank: int, port: int) -> None:
        role, host = self._awaited[rank, port][0], self._ranks.node_name(rank)
        detail = f"rank 0 of the role '{role}' on {host} does not listen on port {port} {self._seconds:g} s after its start"
        hint = f"--start-timeout TIME waits longer; 'ss -ltnp' on {host} shows which process has the port"
        self._end(Verdict(ExitCode.TIMEOUT, "role-not-ready", host=host, detail=detail, hint=hint))

    def close(self) -> None:
        """Start no further role, since the job ends."""
        for _, timer in self._awaited.values():
            timer.cancel()
        self._awaited.clear()
        self._starter.drop_waiting()
