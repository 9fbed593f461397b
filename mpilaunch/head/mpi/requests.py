"""Services for MPI programs: collectives of several nodes, published names, spawned worlds, and detection of endless waits.

Ranks in MPI_Init wait for all ranks of their world. A rank that has ended, or does not come within `--mpi-init-timeout`, would
keep them waiting for ever: it is named, and the job ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mpilaunch.errors import ExitCode, LaunchError
from mpilaunch.head.mpi.collectives import Collective, Collectives, LimitExceeded
from mpilaunch.head.mpi.names import PublishedNames
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import LONGEST_NOTE, Handler, NodeLink
from mpilaunch.head.nodes.messages import DAEMON_REQUESTS
from mpilaunch.head.ranks import Ranks
from mpilaunch.head.tasks import Slices, start
from mpilaunch.hosts.nodeset import fold, name_ranks
from mpilaunch.job.environment.contract import mpi_offer
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState, RankEnd
from mpilaunch.job.verdict import Verdict
from mpilaunch.job.worlds import WITHOUT_EFFECT, spawned_world
from mpilaunch.wire.frames import WireError
from mpilaunch.wire.messages import accepts
from mpilaunch.wire.session import encode_shared

MAX_REQUESTS = 10_000
"""Requests of each kind that may wait for an answer."""


class MpiServices:
    """The MPI services of one job, which may end it; its handlers raise WireError for a wrong message.

    Attributes:
        handlers, requests: of the daemons' messages, and of what they ask for by `ask`.
        missed: the ranks that have ended or are lost and that other ranks wait for.
    """

    def __init__(
        self,
        job: JobSpec,
        daemons: Daemons,
        ranks: Ranks,
        state: JobState,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        end: Callable[[Verdict], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._job, self._daemons, self._ranks, self._state = job, daemons, ranks, state
        self._say, self._warn, self._end, self._crashed = say, warn, end, crashed
        self._warned = self._closed = False
        self._offer = mpi_offer(job.mpi)
        self.handlers: dict[str, Handler] = {
            "collective": self.collect, "ask": self.ask, "answer": self.take_modex, "joined": self.join,
            "waiting": self.take_absent, "singleton": self.warn_of_singleton,
        }  # fmt: skip
        self.requests: dict[str, Handler] = {
            "publish": self._publish, "unpublish": self._unpublish, "lookup": self._look_up, "spawn": self._spawn,
            "modex": self._find_modex,
        }  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._collectives = Collectives()
        self._names = PublishedNames()
        self._examining = Slices(self._names.examine_next)
        self._modex: dict[int, tuple[NodeLink, dict[str, Any], int]] = {}
        self._last_modex = 0
        self._joined: dict[str, set[int]] = {}
        self._ended: set[int] = set()
        self._outside: set[int] = set()
        self.missed: set[int] = set()
        self._began: dict[str, float] = {}
        self._noted: set[str] = set()
        self._absent: dict[tuple[str, int], list[int]] = {}
        self._spawning = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: list[asyncio.TimerHandle] = []

    def close(self) -> None:
        """Start no further world and cancel the timers, since the job ends."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for timer in self._timers:
            timer.cancel()

    # Messages of daemons; all handlers raise WireError when the content is wrong or about another node

    def check_offered(self, message: str, protocol: str = "") -> None:
        """Raise WireError unless the job offers its ranks this protocol, or any protocol at all."""
        if protocol not in self._offer if protocol else not self._offer:
            raise WireError(f"{message!r} in a job that offers no {protocol or 'MPI'}")

    def node_lost(self, index: int) -> None:
        """Forget the requests of a lost node, and answer those that wait for it."""
        self._names.forget(index)
        for number, (asker, ask, owner) in list(self._modex.items()):
            if index in (asker.node.index, owner):
                del self._modex[number]
                _answer(asker, ask, error="not-found")

    def collect(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Enter a node's part of a collective, and answer all its nodes when it is complete."""
        family = message["kind"].partition(" ")[0]
        self.check_offered("collective", family)
        if isinstance(message["data"], str) != (family == "pmix"):
            raise WireError("the data of a collective is not that of its kind")
        if family == "pmix":
            _check_base64(message["data"])
        size, here = self._ranks.count_members(message["members"], link.node.index)
        if not 1 <= message["ranks"] <= here:
            raise WireError(f"a collective of {message['ranks']} ranks, of which this node has {here}")
        try:
            collective = self._collectives.enter(link.node.index, message, size)
        except LimitExceeded as error:
            host = link.node.name
            self._end(Verdict(ExitCode.MPI_FAILED, "mpi-failed", host=host, detail=f"{host}: {error}"))
            return
        if collective.complete:
            answer = encode_shared(collective.answer())
            for index in collective.nodes:
                self._daemons.links[index].send({"type": "collective"}, answer)
        elif self._ended:
            self.missed |= {rank for rank in self._ended if self._is_member(rank, collective)}

    def ask(self, link: NodeLink, ask: dict[str, Any]) -> None:
        kind = ask["request"][:LONGEST_NOTE]
        if not any(accepts(protocol, {**ask, "type": kind}, DAEMON_REQUESTS) for protocol in self._offer):
            raise WireError(f"'ask' for {kind!r}, which this job does not offer")
        if kind in ("publish", "unpublish", "lookup"):
            self.check_offered(kind, ask["space"])
        self.requests[kind](link, ask)

    def _publish(self, link: NodeLink, ask: dict[str, Any]) -> None:
        pmix = ask["space"] == "pmix"
        for value in ask["values"].values():
            if isinstance(value, list) != pmix:
                raise WireError("a published value is not that of its space")
            if pmix:
                self._ranks.own_rank(value[0], value[1], link.node.index)
        _answer(link, ask, error=self._names.publish(link.node.index, ask["space"], ask["values"]))
        self._examining.run()

    def _unpublish(self, link: NodeLink, ask: dict[str, Any]) -> None:
        _answer(link, ask, error=self._names.unpublish(link.node.index, ask["space"], ask["names"]))

    def _look_up(self, link: NodeLink, ask: dict[str, Any]) -> None:
        def reply(values: dict[str, Any], error: str) -> None:
            _answer(link, ask, values=values, error=error)

        self._names.lookup(link.node.index, ask["space"], ask["names"], ask["wait"], reply)

    def _find_modex(self, link: NodeLink, ask: dict[str, Any]) -> None:
        """Pass a request for a rank's data on to the rank's node; for rank -1, to any node of the world."""
        owner = None
        with suppress(LookupError):  # the rank's number comes from the program
            rank = self._ranks.of_world(ask["world"])[max(0, ask["rank"])]
            owner = self._daemons.links[self._ranks.place(rank).node]
        if owner is None or owner.given_up or len(self._modex) >= MAX_REQUESTS:
            _answer(link, ask, error="not-found")
            return
        self._last_modex += 1
        self._modex[self._last_modex] = link, ask, owner.node.index
        owner.send({"type": "ask", "id": self._last_modex, "request": "modex", "world": ask["world"], "rank": ask["rank"]})

    def take_modex(self, link: NodeLink, answer: dict[str, Any]) -> None:
        """Pass a node's answer to `_find_modex` on to the node that asked."""
        if answer["id"] not in self._modex:
            if not 0 < answer["id"] <= self._last_modex:
                raise WireError("an answer to a question that was not asked")
            return  # the node that asked is lost
        asker, ask, owner = self._modex[answer["id"]]
        if owner != link.node.index:
            raise WireError("an answer to a question that another node was asked")
        data = answer.get("data", "")
        _check_base64(data)
        del self._modex[answer["id"]]
        _answer(asker, ask, error=answer["error"][:LONGEST_NOTE], data=data)

    def _spawn(self, link: NodeLink, ask: dict[str, Any]) -> None:
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
            _answer(link, ask, error=error)
        else:
            start(self._tasks, self._spawn_world(link, ask), self._crashed)

    async def _spawn_world(self, link: NodeLink, ask: dict[str, Any]) -> None:
        """Start a world and answer the rank that asked for it; a failure is reported to that rank and does not end the job."""
        async with self._spawning:
            ranks = self._ranks
            for key in sorted({key for app in ask["apps"] for key in app["info"]} & WITHOUT_EFFECT.keys() - self._noted):
                self._noted.add(key)
                self._say(f"the info key {key} of MPI_Comm_spawn has no effect: {WITHOUT_EFFECT[key]}")
            try:
                count = sum(world.size for world in ranks.worlds)
                living = [ranks.place(rank) for rank in range(count) if self._state.is_alive(rank)]
                world = spawned_world(self._job, ranks.worlds, ask, living)
                nodes = [self._job.allocation.nodes[index] for index in world.job_map.nodes]
                await self._daemons.join(nodes, self._job.deadlines.start)
                ranks.introduce(world)
                await ranks.prepare(world)
                ranks.add(world)
            except LaunchError as error:
                if link.may_note():
                    self._say(f"MPI_Comm_spawn failed: {error}"[:LONGEST_NOTE])
                _answer(link, ask, error=str(error))
                return
            ranks.launch([world])
            counts = Counter(place.app for place in world.job_map.placements)
            _answer(link, ask, world=world.name, counts=[counts[app] for app in range(len(world.apps))])

    # Ranks that others wait for

    def warn_of_singleton(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Warn once that an MPI program has not found the other ranks and will run as a job of its own."""
        self._ranks.check_rank(message["rank"], link.node.index)
        if self._warned:
            return
        self._warned = True
        for key in ("library", "family", "pmix_error"):
            message[key] = message[key][:LONGEST_NOTE]
        needed, name = ("pmix", "PMIx") if message["family"] == "Open MPI" else ("pmi", "PMI-1")
        if needed not in message["offer"]:
            reason = f"--mpi {self._job.mpi} offers no {name}, which {message['family']} needs"
        elif needed == "pmix" and message["pmix_error"]:
            reason = f"no PMIx there, which Open MPI needs: {message['pmix_error']}; install libpmix2, or use --pmix-library"
        else:
            reason = "it asked for neither PMI nor PMIx: was it built for another launcher?"
        rank = message["rank"]
        self._warn(
            f"rank {rank} on {self._ranks.node_name(rank)} has an MPI library ({message['library']}, {message['family']}) "
            f"and has not found the other ranks, so it is a world of one: {reason}"
        )

    def rank_ended(self, end: RankEnd) -> None:
        self._end_rank(end.rank, outside=end.mpi == "absent")

    def rank_lost(self, rank: int) -> None:
        self._end_rank(rank, outside=True)

    def _end_rank(self, rank: int, *, outside: bool) -> None:
        """Record the end of a rank; one that is `outside` has never called MPI_Init."""
        self._ended.add(rank)
        if outside:
            self._outside.add(rank)
            if any(rank in self._ranks.of_world(name) for name in self._joined):
                self.missed.add(rank)
        if any(self._is_member(rank, collective) for collective in self._collectives.waiting()):
            self.missed.add(rank)

    def _is_member(self, rank: int, collective: Collective) -> bool:
        for name, number in collective.members:
            world = self._ranks.of_world(name)
            if rank in world and number in (-1, rank - world.start):
                return True
        return False

    def join(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Record that the first rank of a world on this node has called MPI_Init."""
        name = message["world"]
        self._ranks.check_world(name, link.node.index)
        if name not in self._joined:
            self._joined[name] = set()
            self.missed |= self._outside.intersection(self._ranks.of_world(name))
            self._began[name] = self._loop.time()
            for seconds in (self._job.deadlines.mpi_init_notice, self._job.deadlines.mpi_init):
                self._timers.append(self._loop.call_later(seconds, self._check_waiting, name))
        self._joined[name].add(link.node.index)

    def _has_joined(self, name: str) -> bool:
        """Return whether every node of a world has reported that a rank called MPI_Init there."""
        return self._joined.get(name, set()) >= {self._ranks.place(rank).node for rank in self._ranks.of_world(name)}

    def take_absent(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Record which ranks of a node have not called MPI_Init."""
        name, node = message["world"], link.node.index
        absent = [self._ranks.own_rank(name, rank, node) for rank in message["absent"]]
        if node not in self._joined.get(name, ()):
            raise WireError("'waiting' for a world that it has not joined")
        self._absent[name, node] = absent
        self._check_waiting(name)

    def _check_waiting(self, name: str) -> None:
        """Name the ranks that others in MPI_Init wait for, and end the job when that takes too long."""
        waited, limit = self._loop.time() - self._began[name], self._job.deadlines.mpi_init
        absent = self._describe_absent(name)
        if not absent or waited < self._job.deadlines.mpi_init_notice:
            return
        text = f"{absent} not called MPI_Init, where the others have waited for"
        if limit and waited >= limit:
            detail = f"{text} {limit:g} s (--mpi-init-timeout)"
            self._end(Verdict(ExitCode.TIMEOUT, "timeout", detail=detail))
        elif name not in self._noted:
            self._noted.add(name)
            self._say(f"{text} {waited:.0f} s")

    def _describe_absent(self, name: str) -> str:
        """Return "ranks 2-3 on node02 have" for the ranks not known to be in MPI_Init, or ""."""
        places = ((rank, self._ranks.place(rank).node) for rank in self._ranks.of_world(name))
        joined = self._joined[name]
        absent = [rank for rank, node in places if node not in joined or rank in self._absent.get((name, node), ())]
        if not absent:
            return ""
        nodes = fold(self._ranks.node_name(rank) for rank in absent)
        return f"{name_ranks(absent)} on {nodes} {'has' if len(absent) == 1 else 'have'}"


def _check_base64(data: Any) -> None:
    from base64 import b64decode  # few launches come here

    try:
        b64decode(data, validate=True)
    except (ValueError, TypeError):
        raise WireError("data that is not base64") from None


def _answer(link: NodeLink, ask: dict[str, Any], **answer: Any) -> None:
    link.send({"type": "answer", "id": ask["id"], "error": "", **answer})
