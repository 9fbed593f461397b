"""What the nodes of a running job report: each event is checked, since a node speaks for its own ranks only, and passed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpilaunch.head.ending.ends import Ends
from mpilaunch.head.ending.faults import Faults
from mpilaunch.head.ending.interrupts import Interrupts
from mpilaunch.head.ending.nodes_done import NodesDone
from mpilaunch.head.mpi.services import MpiServices
from mpilaunch.head.nodes.link import Handler, NodeLink
from mpilaunch.head.observe import Timeline
from mpilaunch.head.observe.looks import Looks
from mpilaunch.head.output.forward import OutputForwarder
from mpilaunch.head.output.stdin import StdinForwarder
from mpilaunch.head.ranks import Ranks
from mpilaunch.head.starting.start_order import StartOrder
from mpilaunch.head.starting.world_starter import WorldStarter
from mpilaunch.job.state import JobState, RankEnd
from mpilaunch.wire.frames import WireError, rank_of

if TYPE_CHECKING:
    from mpilaunch.head.starting.independent_hosts import IndependentHosts


class NodeEvents:
    """The `LinkEvents` of all nodes of one launch.

    Attributes:
        handlers: of the daemons' messages, but those of `NodeLink` and `MpiServices`.
        crashed: called with a fault of our own.
    """

    def __init__(
        self,
        ranks: Ranks,
        state: JobState,
        timeline: Timeline,
        output: OutputForwarder,
        stdin: StdinForwarder,
        mpi: MpiServices,
        starter: WorldStarter,
        order: StartOrder | IndependentHosts,
        ends: Ends,
        nodes_done: NodesDone,
        faults: Faults,
        interrupts: Interrupts,
        looks: Looks,
        say: Callable[[str], None],
    ) -> None:
        self._ranks, self._state, self._timeline, self._output, self._stdin = ranks, state, timeline, output, stdin
        self._mpi, self._starter, self._ends, self._nodes_done, self._say = mpi, starter, ends, nodes_done, say
        self.crashed = faults.take
        self.handlers: dict[str, Handler] = {
            "ready": self._answered, "refused": self._answered, "started": self._ranks_started, "exited": self._rank_exited,
            "finished": nodes_done.take_finished, "listens": order.take_listening, "fault": faults.take_daemon,
            "terminated": interrupts.take_terminated, "note": self._noted,
            "observed": looks.take_observed, "stack": looks.take_stack, "backtrace": looks.backtraces.take,
        }  # fmt: skip

    def message(self, link: NodeLink, message: dict[str, Any]) -> None:
        kind = message["type"]
        if for_mpi := self._mpi.handlers.get(kind):
            self._mpi.check_offered(kind)
            for_mpi(link, message)
            self._ends.check_missed()
        else:
            self.handlers[kind](link, message)

    def data(self, link: NodeLink, channel: int, data: bytes) -> None:
        self._output.data(link, channel, data)

    def end_of_stream(self, channel: int) -> None:
        """After the last stream of a rank, the rank is drained."""
        self._output.end(channel)
        rank = rank_of(channel)
        if self._output.drained(rank):
            self._apply(rank, "drained")
            self._nodes_done.check()

    def credit(self, channel: int) -> None:
        self._stdin.credit(channel)

    def gone(self, link: NodeLink, reason: str) -> None:
        self._starter.gone(link, reason)
        self._ends.link_ended(link, reason)

    def _answered(self, link: NodeLink, message: dict[str, Any]) -> None:
        self._starter.answered(link, message)
        self._nodes_done.check()

    def _ranks_started(self, link: NodeLink, message: dict[str, Any]) -> None:
        for rank, _pid, clock in message["ranks"]:
            self._check_rank(link, rank, started=False)
            self._timeline.rank_starts[rank] = link.clock.read(clock)
            self._apply(rank, "started")
        self._stdin.more_credit()
        for rank, number, clock in message["failed"]:
            self._check_rank(link, rank, started=False)
            self._stdin.rank_ended(rank, 0)
            self._exited(RankEnd(rank, errno=number, clock=link.clock.read(clock)))

    def _rank_exited(self, link: NodeLink, message: dict[str, Any]) -> None:
        self._check_rank(link, message["rank"], started=True)
        if (message["code"] is None) == (message["signal"] is None):
            raise WireError("'exited' with a code and a signal, or neither")
        self._stdin.rank_ended(message["rank"], message["stdin_read"])
        self._exited(RankEnd.from_message(message, link.clock.read(message["clock"])))

    def _exited(self, end: RankEnd) -> None:
        self._apply(end.rank, "exited", end)
        self._ends.rank_ended(end)

    def _noted(self, link: NodeLink, message: dict[str, Any]) -> None:
        self._say(f"{link.node.name}: {message['text']}")

    def _apply(self, rank: int, event: str, end: RankEnd | None = None) -> None:
        """Apply what a node has reported; raises WireError when the rank's state does not allow it."""
        try:
            self._state.apply(rank, event, end)
        except ValueError as error:
            raise WireError(str(error)) from None

    def _check_rank(self, link: NodeLink, rank: int, *, started: bool) -> None:
        self._ranks.check_rank(rank, link.node.index)
        if (self._state.states[rank] != "waiting") != started:
            raise WireError(f"rank {rank} has {'not ' if started else ''}started")
