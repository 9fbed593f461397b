"""One launch, as named steps: daemons, preparation, ranks, their run, their end, the verdict.

Each step either leads to the next or raises one LaunchError; whatever happens, no daemon and no rank is left. What has been
decided before (allocation, map, environment) comes in as a JobSpec; what the nodes say decides the rest.
"""

from __future__ import annotations

import asyncio
import errno
import signal
from collections.abc import Collection, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from mpilaunch.agent import Agent
from mpilaunch.errors import ExitCode
from mpilaunch.head.checkpoints import Checkpoints
from mpilaunch.head.limits import raise_file_limit
from mpilaunch.head.mpi.requests import MpiServices
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import LONGEST_NOTE, NodeLink
from mpilaunch.head.nodes.messages import DAEMON_SAYS
from mpilaunch.head.nodes.preparation import master
from mpilaunch.head.observe.observer import Observer
from mpilaunch.head.observe.timeline import Timeline
from mpilaunch.head.output.forward import OutputForwarder
from mpilaunch.head.output.stdin import StdinForwarder
from mpilaunch.head.ranks import Ranks
from mpilaunch.head.signals import SignalRelay
from mpilaunch.head.stop import Stop
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState, RankEnd, Verdict, signal_name, verdict_of_ranks
from mpilaunch.job.worlds import first_world
from mpilaunch.placement.binding import describe_binding
from mpilaunch.wire.frames import WireError, rank_of

SIGNALS_TO_QUIT = 3
"""Signals to mpilaunch after which it waits for no node."""
MOST_SWEPT, LONGEST_NAME = 10_000, 64
"""Processes that ranks left behind which are listed, and characters of the name of each."""


class Launch:
    """A job on its way, made inside a running event loop. It is the `LinkEvents` of all its nodes."""

    def __init__(self, job: JobSpec, agents: Mapping[str, Agent], observer: Observer) -> None:
        self._job = job
        self._observer = observer
        self._timeline = Timeline()
        self._state = JobState({})
        self._finished: dict[int, int] = {}
        self._lost_nodes: set[int] = set()
        self._swept: list[tuple[str, int, str]] = []
        self._running = False
        self._error: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        nodes = [job.allocation.nodes[index] for index in job.job_map.nodes]
        self._daemons = Daemons(job, nodes, agents, self, say=self._say)
        raise_file_limit(job, nodes)
        self._output = OutputForwarder(job, self._output_broken)
        self._ranks = Ranks(job, self._daemons, self._output, self._state, self._say)
        self._ranks.add(first_world(job))
        self._mpi = MpiServices(
            job, self._daemons, self._ranks, self._state, self._say, self._warn, self._end_early, self._crashed
        )
        self._stop = Stop(job, self._daemons, self._ranks, self._state, self._output, self._mpi.close, self._node_done)
        self._stdin: StdinForwarder | None = None
        self._preempted = False
        self._checkpoints = Checkpoints(job, self._tell_all, self._say)

    async def run(self, signals: SignalRelay) -> Verdict:
        """Go through the steps; see the module. Signals are ours until it returns."""
        signals.receiver = self
        try:
            await signals.until_interrupted(self._start())
            await self._run_ranks()
        finally:
            self._stop.leaving = True
            self._mpi.close()
            await self._daemons.end()
            if self._stdin is not None:
                self._stdin.close()
            self._checkpoints.close()
            await self._output.drain()
            self._stop.close()
            signals.receiver = None
        return self._conclude()

    # What it has to tell when it has ended

    @property
    def lost_nodes(self) -> frozenset[int]:
        """Places in the allocation of the nodes that were lost."""
        return frozenset(self._lost_nodes)

    def node_of(self, rank: int) -> int:
        """Return the place in the allocation of a rank's node."""
        return self._ranks.place(rank).node

    @property
    def port(self) -> int:
        """MASTER_PORT of its ranks."""
        return master(self._job, self._ranks.worlds[0], self._facts())[1]

    def report(self, verdict: Verdict) -> dict[str, Any]:
        """Return the report on it as data."""
        from mpilaunch.head.report import report  # few launches write one

        return report(self._job, self._facts(), self._ranks, self._state, self._timeline, verdict)

    # Steps

    async def _start(self) -> None:
        """Daemons on all nodes, everything checked, ranks told to start."""
        total = len(self._job.job_map.nodes)

        def progress(waiting: Collection[str]) -> None:
            self._observer.progress(total - len(waiting), total, waiting)

        self._timeline.begin("launch-daemons")
        await self._daemons.start(self._job.deadlines.start, progress)
        self._timeline.begin("prepare")
        self._tell_nodes()
        await self._ranks.prepare(self._ranks.worlds[0])
        self._observer.started()
        if self._job.report_bindings:
            facts = self._facts()
            for rank, binding in sorted(self._ranks.bindings.items()):
                cpus = facts[self._ranks.place(rank).node].cpus
                self._output.say(f"rank {rank} on {self._ranks.node_name(rank)}: {describe_binding(binding, cpus)}\n")
        self._timeline.begin("start-ranks")
        self._ranks.launch()
        self._running = True

    def _tell_nodes(self) -> None:
        if self._job.output.verbose >= 1:
            nodes = f"{len(self._links)} nodes" if len(self._links) > 1 else "1 node"
            self._say(f"{nodes} reported after {self._timeline.phases()['launch-daemons']:.1f} s")
        if self._job.output.verbose >= 2:
            for index, facts in self._facts().items():
                size = f"{len(facts.cpus)} CPUs, {len(facts.gpus)} GPUs"
                python = f"python {facts.python} ({facts.executable})"
                name = self._daemons.links[index].node.name
                self._say(f"{name}: {facts.hostname}, {size}, {python}, {', '.join(facts.addresses)}")

    async def _run_ranks(self) -> None:
        """Wait until every rank is finished and every node has swept, within the time limits."""
        self._timeline.begin("run")
        self._stdin = StdinForwarder(self._stdin_targets())
        self._checkpoints.begin()
        self._stop.limit_time()
        await self._done.wait()
        if self._error is not None:
            raise self._error
        self._timeline.begin("end")

    def _conclude(self) -> Verdict:
        verdict = verdict_of_ranks(self._state)
        if verdict.first is not None:
            from mpilaunch.head.explain import explain  # only a failure pays for it

            verdict = explain(self._state, verdict.first, self._output.last_lines, self._ranks.node_name)
        if self._stop.outcome is not None:
            failed, stopped, finished = self._state.other_ranks(None)
            verdict = replace(self._stop.outcome, stopped=stopped, finished=finished)
            if self._job.continue_on_error:
                hosts = tuple(self._ranks.node_name(end.rank) for end in failed)
                verdict = replace(verdict, failed_after=failed, hosts=hosts)
        elif verdict.first is None and self._output.lost:
            verdict = replace(verdict, exit_code=ExitCode.OUTPUT_LOST, cause="output-lost", detail=self._output.lost)
        self._timeline.begin("")
        ends = self._state.ends.values() if verdict.first is None else [verdict.first]
        seconds = self._timeline.seconds_to(end.clock for end in ends)
        return replace(verdict, swept=tuple(self._swept), seconds=seconds, unread=self._output.unread)

    # LinkEvents

    def message(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Take what a daemon sends; raises WireError where it is not about this node, or cannot be."""
        attrgetter(DAEMON_SAYS[message["type"]][2])(self)(link, message)

    def _answered(self, link: NodeLink, message: dict[str, Any]) -> None:
        self._ranks.answered(link, message)
        self._check_done()

    def _ranks_started(self, link: NodeLink, message: dict[str, Any]) -> None:
        for rank, _pid, clock in message["ranks"]:
            self._check_rank(link, rank, started=False)
            self._timeline.rank_started(rank, link.head_clock(clock))
            self._state.apply(rank, "started")
        for rank, number, clock in message["failed"]:
            self._check_rank(link, rank, started=False)
            self._reads_no_more(rank, 0)
            self._exited(RankEnd(rank, errno=number, clock=link.head_clock(clock)))

    def _rank_exited(self, link: NodeLink, message: dict[str, Any]) -> None:
        self._check_rank(link, message["rank"], started=True)
        if (message["code"] is None) == (message["signal"] is None):
            raise WireError("'exited' with a code and a signal, or neither")
        self._reads_no_more(message["rank"], message["stdin_read"])
        self._exited(RankEnd.from_message(message, link.head_clock(message["clock"])))

    def _serve(self, link: NodeLink, message: dict[str, Any]) -> None:
        self._mpi.message(link, message)
        self._check_missed()

    def _pmix_broken(self, link: NodeLink, message: dict[str, Any]) -> None:
        self._mpi.check_offered("broken", "pmix")
        detail = f"{link.node.name}: {message['text'][:LONGEST_NOTE]}"
        self._end_early(Verdict(ExitCode.MPI_FAILED, "mpi-failed", host=link.node.name, detail=detail))

    def _terminated(self, link: NodeLink, message: dict[str, Any]) -> None:
        """The daemon got SIGTERM, and so perhaps did every process of the job there: it counts as if it had come to us."""
        self._preempt(f"SIGTERM to the processes on {link.node.name}")

    def _noted(self, link: NodeLink, message: dict[str, Any]) -> None:
        self._say(f"{link.node.name}: {message['text']}")

    def _node_finished(self, link: NodeLink, message: dict[str, Any]) -> None:
        """A node has ended its ranks; with fewer worlds than it was told to prepare, another is on its way to it."""
        index = link.node.index
        told = self._ranks.worlds_told[index]
        if message["worlds"] > told:
            raise WireError(f"'finished' with {message['worlds']} worlds of {told}")
        if message["worlds"] < told or self._node_done(index):
            return
        left = next((rank for rank in self._ranks.of_node(index) if rank not in self._state.finished), None)
        if left is not None:
            raise WireError(f"'finished' before the end of rank {left}")
        room = max(0, MOST_SWEPT - len(self._swept))
        self._swept += [(link.node.name, pid, name[:LONGEST_NAME]) for pid, name in message["swept"][:room]]
        self._finished[index] = message["worlds"]
        link.state = "finished"
        self._check_done()

    def _check_rank(self, link: NodeLink, rank: int, *, started: bool) -> None:
        if not self._ranks.is_on(rank, link.node.index):
            raise WireError(f"rank {rank} is none of this node")
        if (self._state.states[rank] != "waiting") != started:
            raise WireError(f"rank {rank} has {'not ' if started else ''}started")

    def data(self, link: NodeLink, channel: int, data: bytes) -> None:
        """Take bytes of a rank's output."""
        self._output.data(link, channel, data)

    def end(self, link: NodeLink, channel: int) -> None:
        """A rank's stdout or stderr has ended; with the last of them the rank is drained."""
        self._output.end(channel)
        rank = rank_of(channel)
        if self._output.drained(rank):
            self._state.apply(rank, "drained")
            self._check_done()

    def credit(self, link: NodeLink, channel: int) -> None:
        """A rank has read of its stdin."""
        if self._stdin is not None:
            self._stdin.more_credit()

    def gone(self, link: NodeLink, reason: str) -> None:
        """A node cannot be heard any more: by our own wish, before the job ran, or as a loss."""
        index = link.node.index
        self._ranks.gone(link, reason)
        self._mpi.node_lost(index)
        if not self._running or self._node_done(index):
            if not self._done.is_set():
                self._check_done()  # it may have been its answer that was waited for
            return
        self._lost_nodes.add(index)
        for rank in self._ranks.of_node(index):
            self._state.apply(rank, "lost")
            self._reads_no_more(rank, None)
            self._mpi.rank_lost(rank)
        words = f"\n{link.last_words}" if link.last_words else ""
        detail = f"{link.node.name}: lost: {reason}{words}"
        outcome = Verdict(ExitCode.NODE_LOST, "node-lost", host=link.node.name, detail=detail)
        if self._job.continue_on_error:
            self._stop.outcome = self._stop.outcome or outcome
            self._say(f"{link.node.name}: lost: {reason}: the others go on")
            self._check_missed()
        elif self._stop.begun:
            self._say(f"{link.node.name}: lost: {reason}")
        else:
            self._stop.begin(outcome)
        self._check_done()

    # Signals

    def interrupt(self, number: int, times: int) -> None:
        """The user or a scheduler asked for the end: the second time the ranks are killed, the third time nobody is awaited.

        Schedulers and timeout(1) may send SIGTERM twice, and promise the ranks the whole grace time: a second has no effect.
        """
        detail = f"{signal_name(number)} to mpilaunch"
        preempted = number == signal.SIGTERM
        outcome = Verdict(128 + number, "preempted" if preempted else "interrupted", detail=detail)
        if times >= SIGNALS_TO_QUIT and not self._stop.leaving:
            self._stop.quit(outcome)
        elif preempted and not self._stop.leaving:
            if times == 1:
                self._preempt(detail)
        else:
            first = [signal.SIGINT, signal.SIGTERM] if number == signal.SIGINT else [signal.SIGTERM]
            if times == 1 and not self._stop.leaving:
                self._say(f"{detail}: the ranks have {self._job.deadlines.grace:g} s to end; once more kills them now")
            self._stop.ask(outcome, first if times == 1 else [], again=True)

    def _preempt(self, detail: str) -> None:
        """SIGTERM came, to us or to a daemon, and perhaps to every process of the job: it counts once."""
        if self._preempted or self._stop.leaving:
            return
        self._preempted = True
        outcome = Verdict(128 + signal.SIGTERM, "preempted", detail=detail)
        if not self._checkpoints.save_first(lambda: self._stop.ask(outcome)):
            self._say(f"{detail}: the ranks have {self._job.deadlines.grace:g} s to end; SIGINT kills them now")
            self._stop.ask(outcome, again=True, shared=True)

    def forward(self, number: int) -> None:
        """Pass a signal on to every rank."""
        if not self._checkpoints.takes(number):
            self._tell_all({"type": "signal", "signal": number})

    def _tell_all(self, message: dict[str, Any]) -> None:
        for link in self._links:
            link.send(message)

    # The end of ranks, and of the job

    def _reads_no_more(self, rank: int, consumed: int | None) -> None:
        """A rank has gone, having read so many bytes of stdin; None: nobody knows."""
        if self._stdin is not None:
            self._stdin.rank_ended(rank, consumed)

    def _exited(self, end: RankEnd) -> None:
        self._state.apply(end.rank, "exited", end)
        self._mpi.rank_ended(end)
        # The others of an MPI job would wait for it for ever.
        if end.failed and not (self._job.continue_on_error and end.mpi in ("absent", "finalized")):
            self._stop.begin(None)
        self._check_missed()
        self._check_done()

    def _check_missed(self) -> None:
        """Ranks that wait in MPI for one that has ended would wait for ever."""
        if self._stop.begun:
            return
        missed = self._mpi.missed()
        if missed:
            self._state.mark_missed(missed)
            self._stop.begin(None)

    def _end_early(self, outcome: Verdict) -> None:
        self._stop.begin(outcome)

    def _crashed(self, error: BaseException) -> None:
        self._error = error
        self._stop.begin(None)

    def _check_done(self) -> None:
        if self._running and self._state.ended and all(map(self._node_done, self._daemons.links)):
            self._done.set()

    def _node_done(self, index: int) -> bool:
        """Say whether nothing is to come from a node; one that has been told to prepare another world is not at its end."""
        return index in self._lost_nodes or self._finished.get(index, 0) == self._ranks.worlds_told[index]

    def _output_broken(self, error: OSError) -> None:
        """Nobody reads our stdout any more: as for any filter, that ends the job, without a word."""
        if error.errno == errno.EPIPE:
            self._stop.begin(Verdict(128 + signal.SIGPIPE, "interrupted", detail="nobody reads the output any more"))

    # Small things

    @property
    def _links(self) -> list[NodeLink]:
        return list(self._daemons.links.values())

    def _facts(self) -> dict[int, NodeFacts]:
        return {index: link.facts for index, link in self._daemons.links.items() if link.facts is not None}

    def _say(self, text: str) -> None:
        line = self._observer.note(text)
        if line:
            self._output.say(line)

    def _warn(self, text: str) -> None:
        self._output.say(self._observer.warned(text))

    def _stdin_targets(self) -> dict[int, NodeLink]:
        placements = self._job.job_map.placements
        return {place.rank: self._daemons.links[place.node] for place in placements if self._job.gets_stdin(place.rank)}
