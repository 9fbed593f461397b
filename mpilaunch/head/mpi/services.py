"""Services of the head for MPI programs: each message and request of a daemon goes to the part that serves it.

Ranks wait in collectives for all of their members, as they do in MPI_Init. One that has ended would keep the others waiting for
ever: it is named, and the job ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpilaunch.errors import ExitCode
from mpilaunch.head.mpi.answers import check_base64
from mpilaunch.head.mpi.collectives import Collective, Collectives, LimitExceeded
from mpilaunch.head.mpi.modex import Modex
from mpilaunch.head.mpi.mpi_init import MpiInit
from mpilaunch.head.mpi.publishing import Publishing
from mpilaunch.head.mpi.singletons import Singletons
from mpilaunch.head.mpi.spawning import Spawning
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import LONGEST_NOTE, Handler, NodeLink
from mpilaunch.head.nodes.messages import DAEMON_REQUESTS
from mpilaunch.head.ranks import Ranks
from mpilaunch.head.starting.world_starter import WorldStarter
from mpilaunch.job.environment.contract import mpi_offer
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState, RankEnd
from mpilaunch.job.verdict import Verdict
from mpilaunch.wire.frames import WireError
from mpilaunch.wire.messages import accepts
from mpilaunch.wire.session import encode_shared


class MpiServices:
    """The MPI services of one job, which may end it; its handlers raise WireError for a wrong message.

    Attributes:
        handlers, requests: of the daemons' messages, and of what they ask for by `ask`.
    """

    def __init__(
        self,
        job: JobSpec,
        daemons: Daemons,
        ranks: Ranks,
        state: JobState,
        starter: WorldStarter,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        end: Callable[[Verdict], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._offer = mpi_offer(job.mpi)
        self._daemons, self._ranks, self._end = daemons, ranks, end
        self._collectives = Collectives()
        self._ended: set[int] = set()
        self._missed: set[int] = set()
        self._init = MpiInit(job.deadlines, ranks, say, end)
        self._spawning = Spawning(job, daemons, ranks, state, starter, self._init.has_joined, say, crashed)
        self._publishing = Publishing(ranks)
        self._modex = Modex(daemons, ranks)
        self.handlers: dict[str, Handler] = {
            "collective": self._collect, "ask": self._take_request, "answer": self._modex.take, "joined": self._init.join,
            "waiting": self._init.take_absent, "singleton": Singletons(job.mpi, ranks, warn).take, "broken": self._take_broken,
        }  # fmt: skip
        self.requests: dict[str, Handler] = {
            "publish": self._publishing.publish, "unpublish": self._publishing.unpublish, "lookup": self._publishing.look_up,
            "spawn": self._spawning.spawn, "modex": self._modex.find,
        }  # fmt: skip

    @property
    def missed(self) -> set[int]:
        """The ranks that have ended or are lost and that other ranks wait for."""
        return self._missed | self._init.missed

    def close(self) -> None:
        """Start no further world and cancel the timers, since the job ends."""
        self._spawning.close()
        self._init.close()

    def check_offered(self, message: str, protocol: str = "") -> None:
        """Raise WireError unless the job offers its ranks this protocol, or any protocol at all."""
        if protocol not in self._offer if protocol else not self._offer:
            raise WireError(f"{message!r} in a job that offers no {protocol or 'MPI'}")

    def node_lost(self, index: int) -> None:
        """Forget the requests of a lost node, and answer those that wait for it."""
        self._publishing.node_lost(index)
        self._modex.node_lost(index)

    def rank_ended(self, end: RankEnd) -> None:
        self._end_rank(end.rank, outside=end.mpi == "absent")

    def rank_lost(self, rank: int) -> None:
        self._end_rank(rank, outside=True)

    def _end_rank(self, rank: int, *, outside: bool) -> None:
        """Record the end of a rank; one that is `outside` has never called MPI_Init."""
        self._ended.add(rank)
        if outside:
            self._init.ended_outside(rank)
        if any(self._is_member(rank, collective) for collective in self._collectives.waiting()):
            self._missed.add(rank)

    def _is_member(self, rank: int, collective: Collective) -> bool:
        for name, number in collective.members:
            world = self._ranks.of_world(name)
            if rank in world and number in (-1, rank - world.start):
                return True
        return False

    def _collect(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Enter a node's part of a collective, and answer all its nodes when it is complete."""
        family = message["kind"].partition(" ")[0]
        self.check_offered("collective", family)
        if isinstance(message["data"], str) != (family == "pmix"):
            raise WireError("the data of a collective is not that of its kind")
        if family == "pmix":
            check_base64(message["data"])
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
            self._missed |= {rank for rank in self._ended if self._is_member(rank, collective)}

    def _take_request(self, link: NodeLink, ask: dict[str, Any]) -> None:
        kind = ask["request"][:LONGEST_NOTE]
        if not any(accepts(protocol, {**ask, "type": kind}, DAEMON_REQUESTS) for protocol in self._offer):
            raise WireError(f"'ask' for {kind!r}, which this job does not offer")
        if kind in ("publish", "unpublish", "lookup"):
            self.check_offered(kind, ask["space"])
        self.requests[kind](link, ask)

    def _take_broken(self, link: NodeLink, message: dict[str, Any]) -> None:
        """End the job, since the PMIx of a node is broken."""
        self.check_offered("broken", "pmix")
        detail = f"{link.node.name}: {message['text'][:LONGEST_NOTE]}"
        self._end(Verdict(ExitCode.MPI_FAILED, "mpi-failed", host=link.node.name, detail=detail))
