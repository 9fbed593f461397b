"""What MPI programs ask of the head: collectives of several nodes, published names, new worlds; and who keeps whom waiting.

Ranks in MPI_Init wait for all ranks of their world. One that has ended, or that does not come in time, would keep them waiting
for ever: it is named, and the job ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mpilaunch.errors import LaunchError
from mpilaunch.head import bundle
from mpilaunch.head.collectives import Collectives
from mpilaunch.head.daemons import Daemons
from mpilaunch.head.link import NodeLink
from mpilaunch.head.names import Names
from mpilaunch.head.preparation import tell_after
from mpilaunch.head.ranks import Ranks
from mpilaunch.jobspec import JobSpec
from mpilaunch.jobstate import JobState, RankEnd
from mpilaunch.nodeset import fold, fold_numbers
from mpilaunch.wire.session import encode_shared
from mpilaunch.worlds import spawned_world


class MpiServices:
    """The services of one job.

    Args:
        say, warn: tell the user something.
        overdue: ends the job for this reason.
        crashed: ends the job for a fault of ours.
    """

    def __init__(
        self,
        job: JobSpec,
        daemons: Daemons,
        ranks: Ranks,
        state: JobState,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        overdue: Callable[[str], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._job = job
        self._daemons = daemons
        self._ranks = ranks
        self._state = state
        self._say, self._warn = say, warn
        self._warned = False
        self._overdue, self._crashed = overdue, crashed
        self._loop = asyncio.get_running_loop()
        self._collectives = Collectives(lambda name: len(ranks.of_world(name)))
        self._names = Names()
        self._modex: dict[int, tuple[NodeLink, dict[str, Any]]] = {}
        self._last_modex = 0
        self._joined: dict[str, set[int]] = {}
        self._ended: set[int] = set()
        self._outside: set[int] = set()
        self._began: dict[str, float] = {}
        self._told: set[str] = set()
        self._absent: dict[tuple[str, int], list[int]] = {}
        self._spawning = asyncio.Lock()
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """The job ends: start nothing more."""
        self._closed = True
        for task in self._tasks:
            task.cancel()

    # From the links

    def message(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Take what daemons say for MPI programs; raises KeyError, TypeError, ValueError when it does not fit."""
        kind = message["type"]
        if kind == "answer":
            asker, ask = self._modex.pop(message["id"])
            asker.send({**message, "id": ask["id"]})
        elif kind == "collective":
            complete = self._collectives.enter(link.node.index, message)
            if complete is not None:
                answer = encode_shared(complete.answer())
                for index in complete.nodes:
                    self._daemons.links[index].send({"type": "collective"}, answer)
        elif kind == "ask":
            getattr(self, _SERVICES[message["what"]])(link, message)
        elif kind == "singleton":
            self._warn_of_singleton(message)
        elif kind == "joined":
            self._join(link.node.index, message["world"])
        else:
            first = self._ranks.of_world(message["world"]).start
            self._absent[message["world"], link.node.index] = [first + rank for rank in message["absent"]]
            self._check_waiting(message["world"])

    def _publish(self, link: NodeLink, ask: dict[str, Any]) -> None:
        _answer(link, ask, error=self._names.publish(ask["space"], ask["values"]))

    def _unpublish(self, link: NodeLink, ask: dict[str, Any]) -> None:
        _answer(link, ask, error=self._names.unpublish(ask["space"], ask["names"]))

    def _look_up(self, link: NodeLink, ask: dict[str, Any]) -> None:
        self._names.lookup(ask["space"], ask["names"], ask["wait"], lambda values: _answer(link, ask, values=values))

    def _find_modex(self, link: NodeLink, ask: dict[str, Any]) -> None:
        """A rank asks for what another has put: its node knows, or, for -1, any node of its world."""
        rank = self._ranks.of_world(ask["world"])[max(0, ask["rank"])]
        self._last_modex += 1
        self._modex[self._last_modex] = (link, ask)
        owner = self._daemons.links[self._ranks.place(rank).node]
        owner.send({"type": "ask", "id": self._last_modex, "what": "modex", "world": ask["world"], "rank": ask["rank"]})

    def _send_modules(self, link: NodeLink, ask: dict[str, Any]) -> None:
        """A node is to serve PMIx, for which it has not been sent all modules."""
        from base64 import b64encode  # few launches come here

        _answer(link, ask, archive=b64encode(bundle.second_part()).decode("ascii"))

    # New worlds

    def _spawn(self, link: NodeLink, ask: dict[str, Any]) -> None:
        if self._closed:
            _answer(link, ask, error="the job ends")
            return
        task = self._loop.create_task(self._spawn_world(link, ask))
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._crashed(error)

    async def _spawn_world(self, link: NodeLink, ask: dict[str, Any]) -> None:
        """Start a world, and answer the rank that asked for it; that it cannot be is for the rank to deal with."""
        async with self._spawning:
            ranks = self._ranks
            try:
                count = sum(world.size for world in ranks.worlds)
                living = [ranks.place(rank) for rank in range(count) if self._state.lives(rank)]
                world = spawned_world(self._job, ranks.worlds, ask, living)
                nodes = [self._job.allocation.nodes[index] for index in world.job_map.nodes]
                await self._daemons.join(nodes, self._job.deadlines.start)
                ranks.introduce(world)
                await ranks.prepare(world)
                ranks.add(world)
            except LaunchError as error:
                self._say(f"MPI_Comm_spawn failed: {error}")
                _answer(link, ask, error=str(error))
                return
            ranks.launch()
            _answer(link, ask, world=world.name, size=world.size)

    # Who has not come

    def _warn_of_singleton(self, message: dict[str, Any]) -> None:
        """An MPI program has not found the others, and will take itself for the whole job: warn once."""
        if self._warned:
            return
        self._warned = True
        needs, offer = ("pmix", "PMIx") if message["family"] == "Open MPI" else ("pmi", "PMI-1"), message["offer"]
        if needs[0] not in offer:
            why = f"--mpi {self._job.mpi} offers no {needs[1]}, which {message['family']} needs"
        elif needs[0] == "pmix" and message["why_no_pmix"]:
            why = f"no PMIx there, which Open MPI needs: {message['why_no_pmix']}; install libpmix2, or say --pmix-library"
        else:
            why = "it asked for neither PMI nor PMIx: was it built for another launcher?"
        rank = message["rank"]
        self._warn(
            f"rank {rank} on {self._ranks.node_name(rank)} has an MPI library ({message['library']}, {message['family']}) "
            f"and has not found the other ranks, so it is a world of one: {why}"
        )

    def rank_ended(self, end: RankEnd) -> None:
        """A rank has exited."""
        self._ended.add(end.rank)
        if end.mpi == "absent":
            self._outside.add(end.rank)

    def rank_lost(self, rank: int) -> None:
        """Nothing more comes from a rank: wherever it was in MPI, nobody meets it there again."""
        self._ended.add(rank)
        self._outside.add(rank)

    def missed(self) -> set[int]:
        """Return the ranks that have ended, or are lost, and that others wait for."""
        if not self._ended:
            return set()
        joined = [self._ranks.of_world(name) for name in self._joined]
        missed = {rank for rank in self._outside if any(rank in world for world in joined)} if joined else set()
        for collective in self._collectives.waiting():
            for name, number in collective.members:
                world = self._ranks.of_world(name)
                missed |= self._ended & (set(world) if number < 0 else {world.start + number})
        return missed

    def _join(self, node: int, name: str) -> None:
        """The first ranks of a world on a node are in MPI_Init."""
        if name not in self._joined:
            self._ranks.of_world(name)
            self._joined[name] = set()
            self._began[name] = self._loop.time()
            for seconds in (tell_after(self._job.deadlines), self._job.deadlines.mpi_init):
                self._loop.call_later(seconds, self._check_waiting, name)
        self._joined[name].add(node)

    def _check_waiting(self, name: str) -> None:
        """Tell the user whom the ranks in MPI_Init wait for, and end the job when that takes too long."""
        waited, limit = self._loop.time() - self._began[name], self._job.deadlines.mpi_init
        who = self._who_is_absent(name)
        if not who or waited < tell_after(self._job.deadlines):
            return
        text = f"{who} not called MPI_Init, where the others have waited for"
        if limit and waited >= limit:
            self._overdue(f"{text} {limit:g} s (--mpi-init-timeout)")
        elif name not in self._told:
            self._told.add(name)
            self._say(f"{text} {waited:.0f} s")

    def _who_is_absent(self, name: str) -> str:
        """Return "ranks 2-3 on node02 have", "" when all have come as far as is known."""
        absent = []
        for rank in self._ranks.of_world(name):
            node = self._ranks.place(rank).node
            if node not in self._joined[name] or rank in self._absent.get((name, node), ()):
                absent.append(rank)
        if not absent:
            return ""
        numbers = f"rank {absent[0]}" if len(absent) == 1 else f"ranks {fold_numbers(absent)}"
        nodes = fold(dict.fromkeys(self._ranks.node_name(rank) for rank in absent))
        return f"{numbers} on {nodes} {'has' if len(absent) == 1 else 'have'}"


_SERVICES = {
    "publish": "_publish",
    "unpublish": "_unpublish",
    "lookup": "_look_up",
    "spawn": "_spawn",
    "modex": "_find_modex",
    "modules": "_send_modules",
}
"""What a daemon may ask for, and the method that does it."""


def _answer(link: NodeLink, ask: dict[str, Any], **answer: Any) -> None:
    link.send({"type": "answer", "id": ask["id"], "error": "", **answer})
