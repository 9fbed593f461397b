"""What follows from the end of a rank and from the loss of a node: whether the other ranks end, and with which verdict.

A rank that fails ends the job, and so does a lost node, unless --continue-on-error is given. Ranks that wait in MPI for one
that has ended would wait for ever, so they end the job in any case. For independent hosts `HostEnds` decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mpilaunch.errors import ExitCode
from mpilaunch.head.ending.nodes_done import NodesDone
from mpilaunch.head.ending.stop import Stop
from mpilaunch.head.ending.suspects import Suspects
from mpilaunch.head.mpi.services import MpiServices
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.output.stdin import StdinForwarder
from mpilaunch.head.ranks import Ranks
from mpilaunch.head.starting.start_order import StartOrder
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState, RankEnd
from mpilaunch.job.verdict import Verdict, first_failure, is_suspect, verdict_of_ranks

if TYPE_CHECKING:
    from mpilaunch.head.ending.host_ends import HostEnds
    from mpilaunch.head.starting.independent_hosts import IndependentHosts


class Ends:
    """The ends of one job's ranks and nodes, told to all parts that wait for them."""

    def __init__(
        self,
        job: JobSpec,
        ranks: Ranks,
        state: JobState,
        order: StartOrder | IndependentHosts,
        mpi: MpiServices,
        stdin: StdinForwarder,
        stop: Stop,
        suspects: Suspects,
        nodes_done: NodesDone,
        host_ends: HostEnds | None,
        say: Callable[[str], None],
    ) -> None:
        self._continue_on_error, self._ranks, self._state, self._say = job.continue_on_error, ranks, state, say
        self._order, self._mpi, self._stdin = order, mpi, stdin
        self._stop, self._suspects, self._nodes_done, self._host_ends = stop, suspects, nodes_done, host_ends

    def close(self) -> None:
        self._suspects.close()

    def verdict(self) -> Verdict:
        """Return the verdict on ranks, or independent hosts, that have all ended by themselves."""
        if self._host_ends is not None:
            return self._host_ends.verdict(self._stopped_hosts())
        lost = map(self._ranks.of_node, sorted(self._nodes_done.lost) if self._continue_on_error else ())
        return verdict_of_ranks(self._state)._replace(lost=tuple(self._ranks.node_name(ranks[0]) for ranks in lost if ranks))

    def verdict_of_stop(self, outcome: Verdict) -> Verdict:
        """Return the verdict on ranks, or independent hosts, that were asked to end."""
        if self._host_ends is not None:
            return self._host_ends.verdict_of_stop(outcome, self._stopped_hosts())
        failed, stopped, finished = self._state.other_ranks(None)
        verdict = outcome._replace(stopped=stopped, finished=finished)
        if self._continue_on_error or verdict.cause == "node-lost":
            hosts = tuple(self._ranks.node_name(end.rank) for end in failed)
            verdict = verdict._replace(failed_after=failed, hosts=hosts)
        return verdict

    def _stopped_hosts(self) -> list[str]:
        """Return the names of the independent hosts whose commands were ended."""
        _, stopped, _ = self._state.other_ranks(None)
        return [self._ranks.node_name(rank) for rank in stopped if rank in self._state.ends]

    def rank_ended(self, end: RankEnd) -> None:
        """Handle the end of a rank, which `state` has."""
        self._mpi.rank_ended(end)
        if self._host_ends is not None:
            self._host_ends.exited(self._ranks.node_name(end.rank), end)
        # With --continue-on-error too, other ranks may wait in MPI for ever for one that fails between init and finalize.
        elif end.failed and not (self._continue_on_error and end.mpi in ("absent", "finalized")):
            if not self._stop.begun:
                self._suspects.ask()
            self._stop.begin(None)
        self._order.rank_ended(end.rank, failed=end.failed)
        self.check_missed()
        self._nodes_done.check()

    def check_missed(self) -> None:
        """Stop the job when ranks wait in MPI for one that has ended."""
        if not self._stop.begun and self._mpi.missed:
            self._state.mark_missed(self._mpi.missed)
            self._stop.begin(None)

    def link_ended(self, link: NodeLink, reason: str) -> None:
        """Handle the end of a link: released, failed before the ranks ran, or lost."""
        index = link.node.index
        self._mpi.node_lost(index)
        if self._nodes_done.started and not self._nodes_done.is_done(index):
            self._node_lost(link, reason)
        self._nodes_done.check()

    def _node_lost(self, link: NodeLink, reason: str) -> None:
        index, name = link.node.index, link.node.name
        self.lose(index)
        if self._host_ends is not None:
            self._host_ends.lost(name, reason)
            return
        detail = f"{name}: lost: {reason}\n{link.channel.last_output}".rstrip("\n")
        outcome = Verdict(ExitCode.NODE_LOST, "node-lost", host=name, detail=detail)
        if self._stop.begun:
            self._say(f"{name}: lost: {reason}")
            if self._stop.outcome is None and self._suspects.is_to_blame(link):
                self._stop.outcome = outcome
        elif self._continue_on_error:
            first = first_failure(self._state)
            if self._stop.outcome is None and (first is None or is_suspect(first.clock, link.channel.last_heard)):
                self._stop.outcome = outcome
            self._say(f"{name}: lost: {reason}; the other ranks continue")
            self.check_missed()
        else:
            self._stop.begin(outcome)
        for rank in self._ranks.of_node(index):
            self._order.rank_ended(rank, failed=True)

    def lose(self, index: int) -> None:
        """Record a node as lost, with its ranks."""
        self._nodes_done.lose(index)
        for rank in self._ranks.of_node(index):
            self._state.apply(rank, "lost")
            self._stdin.rank_ended(rank, None)
            self._mpi.rank_lost(rank)
