"""One launch from start to verdict: start the daemons, prepare and start the ranks, wait for their end.

Each step leads to the next or raises one LaunchError; in every case no daemon and no rank is left. Events of the nodes and
signals to mpilaunch arrive here. When a node is lost, `Launch.gone` decides whether the other ranks end, and `head.ending` ends
them.
"""

from __future__ import annotations

import asyncio
import errno
import signal
from collections.abc import Mapping
from typing import Any

from mpilaunch.agent import Agent
from mpilaunch.errors import ExitCode, LaunchError
from mpilaunch.head.checkpoints import Checkpoints
from mpilaunch.head.ending.faults import Faults
from mpilaunch.head.ending.stop import Stop
from mpilaunch.head.ending.suspects import Suspects
from mpilaunch.head.mpi.services import MpiServices
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import LONGEST_NOTE, Handler, NodeLink
from mpilaunch.head.observe import Observer, Timeline, node_notes
from mpilaunch.head.output.forward import OutputForwarder
from mpilaunch.head.output.stdin import StdinForwarder
from mpilaunch.head.ranks import Ranks, StartOrder
from mpilaunch.head.signals import SIGNALS_TO_QUIT, SignalRelay
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.hosts.nodeset import fold
from mpilaunch.job.preparation.world_facts import master
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState, RankEnd, signal_name
from mpilaunch.job.verdict import Verdict, verdict_of_ranks
from mpilaunch.job.worlds import first_worlds
from mpilaunch.placement.gpu_binding import describe_binding
from mpilaunch.wire.frames import WireError, rank_of

MOST_SWEPT, LONGEST_NAME = 10_000, 64
"""How many orphaned processes the report lists, and how many characters of each name."""


class Launch:
    """A running job, and the `LinkEvents` of all its nodes; create it inside a running event loop.

    Attributes:
        ranks: the ranks of the job.
        lost_nodes: indexes in the allocation of the nodes that were lost.
        handlers: of the daemons' messages, but those of `NodeLink` and `MpiServices`.
    """

    def __init__(self, job: JobSpec, agents: Mapping[str, Agent], observer: Observer) -> None:
        self._job, self._observer, self._timeline = job, observer, Timeline()
        self._state = JobState({})
        self._finished: dict[int, int] = {}
        self.lost_nodes: set[int] = set()
        self._swept: list[tuple[str, int, str]] = []
        self._running = self._preempted = False
        self._done = asyncio.Event()
        nodes = [job.allocation.nodes[index] for index in job.job_map.nodes]
        self._daemons = Daemons(job, nodes, agents, self, say=self._say)
        self._output = OutputForwarder(job, self._output_broken)
        self.ranks = Ranks(job, self._daemons, self._output, self._state, self._say)
        for world in first_worlds(job):
            self.ranks.add(world)
        self._stop = Stop(job, self._daemons, self.ranks, self._state, self._output, self._stopping, self._node_done)
        self._faults = Faults(self._stop.begin)
        self.crashed = self._faults.take
        self._suspects = Suspects(job, self._daemons, self.ranks, self._state, self._say, self._node_done)
        self._order = StartOrder(job, self._daemons, self.ranks, self._state, self._stop.begin)
        self._mpi = MpiServices(
            job, self._daemons, self.ranks, self._state, self._say, self._warn, self._stop.begin, self.crashed
        )
        self.handlers: dict[str, Handler] = {
            "ready": self._answered, "refused": self._answered, "started": self._ranks_started, "exited": self._rank_exited,
            "finished": self._node_finished, "listens": self._order.take_listening, "fault": self._faults.take_daemon,
            "terminated": self._terminated, "broken": self._pmix_broken, "note": self._noted,
        }  # fmt: skip
        self._checkpoints = Checkpoints(job, self._send_all, self._say)
        readers = {place.rank: place.node for place in job.global_map.placements if job.gets_stdin(place.rank)}
        self._stdin = StdinForwarder(readers, self._daemons.links)

    async def run(self, signals: SignalRelay) -> Verdict:
        """Run the job and return its verdict; signals go to this launch until it returns."""
        signals.receiver = self
        asyncio.get_running_loop().set_exception_handler(self._faults.take_callback)
        try:
            await signals.until_interrupted(self._start())
            await self._run_ranks()
        except (asyncio.CancelledError, LaunchError):
            if self._faults.first is None:
                raise
        finally:
            self._stop.leaving = True
            self._mpi.close()
            await self._daemons.end()
            self._stdin.close()
            self._checkpoints.close()
            await self._output.drain()
            self._stop.close()
            self._suspects.close()
            signals.receiver = None
        if self._faults.first is not None:
            raise self._faults.first
        return self._conclude()

    # Results, valid after `run`

    @property
    def port(self) -> int:
        """MASTER_PORT of the ranks."""
        return master(self._job, self.ranks.worlds[0], self._facts())[1]

    def report(self, verdict: Verdict) -> dict[str, Any]:
        """Return the data of the report (docs/report.md)."""
        from mpilaunch.head.observe.report import report  # few launches write one

        return report(self._job, self._facts(), self.ranks, self._state, self._timeline, verdict)

    async def _start(self) -> None:
        """Start the daemons, check everything, then start the ranks."""
        self._faults.starting = asyncio.current_task()
        self._output.begin()
        self._timeline.begin("launch-daemons")
        try:
            await self._daemons.start(self._job.deadlines.start, self._observer.progress)
        except LaunchError as error:
            self._skip(error)
        self._timeline.begin("prepare")
        for note in node_notes(self._job, self._facts(), self._timeline.phases()["launch-daemons"]):
            self._say(note)
        await self.ranks.prepare_job()
        self._observer.started()
        if self._job.report_bindings:
            facts = self._facts()
            for rank, binding in sorted(self.ranks.bindings.items()):
                cpus = facts[self.ranks.place(rank).node].cpus
                self._output.say(f"rank {rank} on {self.ranks.node_name(rank)}: {describe_binding(binding, cpus)}\n")
        self._timeline.begin("start-ranks")
        self._order.launch()
        self._running = True
        self._faults.starting = None

    def _skip(self, error: LaunchError) -> None:
        """Go on without the nodes that did not start, as if they were lost later; raises the error if that is not wanted."""
        if not self._job.skip_unreachable or not set(self._daemons.links) - set(error.nodes):
            raise error
        for index in error.nodes:
            self._daemons.links.pop(index).give_up("it did not start")
            self._lose(index)
        names = fold(error.nodes.values())
        message = error.message if names in error.message else f"{error.message}: {names}"
        detail = "\n".join((message, *error.context[:-1]))  # the last line is about ranks that did not start
        self._stop.outcome = Verdict(ExitCode.NODE_LOST, "node-lost", host=names, detail=detail, hint=error.hint)
        self._say(f"{message}; the other ranks continue")

    def _lose(self, index: int) -> None:
        """Record a node as lost, with its ranks."""
        self.lost_nodes.add(index)
        for rank in self.ranks.of_node(index):
            self._state.apply(rank, "lost")
            self._stdin.rank_ended(rank, None)
            self._mpi.rank_lost(rank)

    async def _run_ranks(self) -> None:
        """Wait until every rank has ended and every node has swept up, within the time limits."""
        self._timeline.begin("run")
        self._stdin.more_credit()
        self._checkpoints.begin()
        self._stop.limit_time()
        await self._done.wait()
        self._timeline.begin("end")

    def _conclude(self) -> Verdict:
        verdict = verdict_of_ranks(self._state)
        if verdict.first is not None:
            from mpilaunch.head.observe.explain import explain  # only a failed job needs it

            verdict = explain(verdict, verdict.first, self._output.last_lines, self.ranks)
        if self._stop.outcome is not None:
            failed, stopped, finished = self._state.other_ranks(None)
            verdict = self._stop.outcome._replace(stopped=stopped, finished=finished)
            if self._job.continue_on_error or verdict.cause == "node-lost":
                hosts = tuple(self.ranks.node_name(end.rank) for end in failed)
                verdict = verdict._replace(failed_after=failed, hosts=hosts)
        elif verdict.first is None and self._output.lost:
            verdict = verdict._replace(exit_code=ExitCode.OUTPUT_LOST, cause="output-lost", detail=self._output.lost)
        self._timeline.begin("")
        ends = self._state.ends.values() if verdict.first is None else [verdict.first]
        seconds = self._timeline.seconds_to(end.clock for end in ends)
        return verdict._replace(swept=tuple(self._swept), seconds=seconds, unread=self._output.unread)

    # LinkEvents

    def message(self, link: NodeLink, message: dict[str, Any]) -> None:
        kind = message["type"]
        if for_mpi := self._mpi.handlers.get(kind):
            self._mpi.check_offered(kind)
            for_mpi(link, message)
            self._check_missed()
        else:
            self.handlers[kind](link, message)

    def _answered(self, link: NodeLink, message: dict[str, Any]) -> None:
        self.ranks.answered(link, message)
        self._check_done()

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

    def _pmix_broken(self, link: NodeLink, message: dict[str, Any]) -> None:
        self._mpi.check_offered("broken", "pmix")
        detail = f"{link.node.name}: {message['text'][:LONGEST_NOTE]}"
        self._stop.begin(Verdict(ExitCode.MPI_FAILED, "mpi-failed", host=link.node.name, detail=detail))

    def _terminated(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Handle SIGTERM received by a daemon, and perhaps by every process of the job there, like SIGTERM to mpilaunch."""
        self._preempt(f"SIGTERM to the processes on {link.node.name}")

    def _noted(self, link: NodeLink, message: dict[str, Any]) -> None:
        self._say(f"{link.node.name}: {message['text']}")

    def _node_finished(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Record that a node has ended its ranks, unless a further world is on its way to the node."""
        index = link.node.index
        sent = self.ranks.worlds_sent[index]
        if message["worlds"] > sent:
            raise WireError(f"'finished' with {message['worlds']} worlds of {sent}")
        if message["worlds"] < sent or self._node_done(index):
            return
        unfinished = next((rank for rank in self.ranks.of_node(index) if rank not in self._state.finished), None)
        if unfinished is not None:
            raise WireError(f"'finished' before the end of rank {unfinished}")
        room = max(0, MOST_SWEPT - len(self._swept))
        self._swept += [(link.node.name, pid, name[:LONGEST_NAME]) for pid, name in message["swept"][:room]]
        self._finished[index] = message["worlds"]
        link.state = "finished"
        self._check_done()

    def _apply(self, rank: int, event: str, end: RankEnd | None = None) -> None:
        """Apply what a node has reported; raises WireError when the rank's state does not allow it."""
        try:
            self._state.apply(rank, event, end)
        except ValueError as error:
            raise WireError(str(error)) from None

    def _check_rank(self, link: NodeLink, rank: int, *, started: bool) -> None:
        self.ranks.check_rank(rank, link.node.index)
        if (self._state.states[rank] != "waiting") != started:
            raise WireError(f"rank {rank} has {'not ' if started else ''}started")

    def data(self, link: NodeLink, channel: int, data: bytes) -> None:
        self._output.data(link, channel, data)

    def end_of_stream(self, channel: int) -> None:
        """After the last stream of a rank, the rank is drained."""
        self._output.end(channel)
        rank = rank_of(channel)
        if self._output.drained(rank):
            self._apply(rank, "drained")
            self._check_done()

    def credit(self) -> None:
        self._stdin.more_credit()

    def gone(self, link: NodeLink, reason: str) -> None:
        """Handle the end of a link: released, failed before the ranks ran, or lost."""
        index, name = link.node.index, link.node.name
        self.ranks.gone(link, reason)
        self._mpi.node_lost(index)
        if not self._running or self._node_done(index):
            if not self._done.is_set():  # else every released node would look at all others
                self._check_done()
            return
        self._lose(index)
        detail = f"{name}: lost: {reason}\n{link.channel.last_output}".rstrip("\n")
        outcome = Verdict(ExitCode.NODE_LOST, "node-lost", host=name, detail=detail)
        if self._job.continue_on_error:
            self._stop.outcome = self._stop.outcome or outcome
            self._say(f"{name}: lost: {reason}; the other ranks continue")
            self._check_missed()
        elif self._stop.begun:
            self._say(f"{name}: lost: {reason}")
            if self._stop.outcome is None and self._suspects.is_to_blame(link):
                self._stop.outcome = outcome
        else:
            self._stop.begin(outcome)
        for rank in self.ranks.of_node(index):
            self._order.rank_ended(rank, failed=True)
        self._check_done()

    def interrupt(self, number: int, times: int) -> None:
        """End the job: the first signal stops the ranks, the second kills them, the third does not wait for nodes.

        A second SIGTERM has no effect: schedulers and timeout(1) may send two, and promise the ranks the whole grace time.
        """
        detail = f"{signal_name(number)} to mpilaunch"
        preempted, leaving = number == signal.SIGTERM, self._stop.leaving
        outcome = Verdict(128 + number, "preempted" if preempted else "interrupted", detail=detail)
        if times >= SIGNALS_TO_QUIT and not leaving:
            self._stop.quit(outcome)
        elif preempted and not leaving:
            if times == 1:
                self._preempt(detail)
        else:
            from_keyboard = number in (signal.SIGINT, signal.SIGQUIT)
            first = [signal.SIGINT, signal.SIGTERM] if from_keyboard else [signal.SIGTERM]
            if times == 1 and not leaving:
                self._say(f"{detail}: the ranks have {self._job.deadlines.grace:g} s to end; once more kills them now")
            self._stop.ask(outcome, first if times == 1 else [], again=True)

    def _preempt(self, detail: str) -> None:
        """Handle the first SIGTERM to mpilaunch or a daemon; the scheduler may have sent it to every process of the job."""
        if self._preempted or self._stop.leaving:
            return
        self._preempted = True
        outcome = Verdict(128 + signal.SIGTERM, "preempted", detail=detail)
        if not self._checkpoints.save_first(lambda: self._stop.ask(outcome)):
            self._say(f"{detail}: the ranks have {self._job.deadlines.grace:g} s to end; SIGINT kills them now")
            self._stop.ask(outcome, again=True, shared=True)

    def forward(self, number: int) -> None:
        if not self._checkpoints.takes(number):
            self._send_all({"type": "signal", "signal": number})

    def _send_all(self, message: dict[str, Any]) -> None:
        for link in list(self._daemons.links.values()):
            link.send(message)

    # The end of ranks, and of the job

    def _exited(self, end: RankEnd) -> None:
        self._apply(end.rank, "exited", end)
        self._mpi.rank_ended(end)
        # With --continue-on-error too, other ranks may wait in MPI for ever for one that fails between init and finalize.
        if end.failed and not (self._job.continue_on_error and end.mpi in ("absent", "finalized")):
            if not self._stop.begun:
                self._suspects.ask()
            self._stop.begin(None)
        self._order.rank_ended(end.rank, failed=end.failed)
        self._check_missed()
        self._check_done()

    def _check_missed(self) -> None:
        """Stop the job when ranks wait in MPI for one that has ended: they would wait for ever."""
        if self._stop.begun:
            return
        if self._mpi.missed:
            self._state.mark_missed(self._mpi.missed)
            self._stop.begin(None)

    def _stopping(self) -> None:
        self._mpi.close()
        self._order.close()

    def _check_done(self) -> None:
        if self._running and self._state.ended and all(map(self._node_done, self._daemons.links)):
            self._done.set()

    def _node_done(self, index: int) -> bool:
        """Return whether a node is lost or has finished all worlds that it was sent."""
        return index in self.lost_nodes or self._finished.get(index, 0) == self.ranks.worlds_sent[index]

    def _output_broken(self, error: OSError) -> None:
        """End the job without a message when the reader of stdout has gone, as SIGPIPE ends a filter."""
        if error.errno == errno.EPIPE:
            self._stop.begin(Verdict(128 + signal.SIGPIPE, "interrupted", detail="the reader of the output has gone"))

    def _facts(self) -> dict[int, NodeFacts]:
        return {index: link.facts for index, link in self._daemons.links.items() if link.facts is not None}

    def _say(self, text: str) -> None:
        line = self._observer.note_line(text)
        if line:
            self._output.say(line)

    def _warn(self, text: str) -> None:
        self._output.say(self._observer.warning_line(text))
