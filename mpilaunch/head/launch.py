"""One launch, as named steps: daemons, preparation, ranks, their run, their end, the verdict.

Each step either leads to the next or raises one LaunchError; whatever happens, no daemon and no rank is left. What has been
decided before (allocation, map, environment) comes in as a JobSpec; what the nodes say decides the rest.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import resource
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mpilaunch.agent import Agent
from mpilaunch.binding import RankBinding, bind_ranks, describe_binding
from mpilaunch.errors import ExitCode
from mpilaunch.facts import NodeFacts
from mpilaunch.head.daemons import Daemons
from mpilaunch.head.failures import NodeFailure, fold_failures
from mpilaunch.head.fences import Fences
from mpilaunch.head.iof import OutputForwarder
from mpilaunch.head.link import NodeLink
from mpilaunch.head.observer import Observer
from mpilaunch.head.preparation import preparations
from mpilaunch.head.signals import SignalRelay
from mpilaunch.head.stdin import StdinForwarder
from mpilaunch.head.timeline import Timeline
from mpilaunch.jobspec import JobSpec
from mpilaunch.jobstate import JobState, RankEnd, Verdict, signal_name, verdict_of_ranks
from mpilaunch.nodeset import fold
from mpilaunch.wire.frames import STDERR, STDIN, STDOUT, rank_of, stream_channel

OVERDUE = 5.0
"""Seconds after the last signal of a stop that a node has to tell that its ranks are gone."""


class Launch:
    """A job on its way, made inside a running event loop. It is the `LinkEvents` of all its nodes."""

    def __init__(self, job: JobSpec, agents: Mapping[str, Agent], observer: Observer) -> None:
        self._job = job
        self._observer = observer
        self._timeline = Timeline()
        self._state = JobState.of(place.rank for place in job.job_map.placements)
        self._ranks_of: dict[int, list[int]] = {index: [] for index in job.job_map.nodes}
        for place in job.job_map.placements:
            self._ranks_of[place.node].append(place.rank)
        self._outcome: Verdict | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._finished_nodes: set[int] = set()
        self._fences = Fences(len(job.job_map.placements))
        self._swept: list[tuple[str, int, str]] = []
        self._running = False
        self._stopping = False
        self._bindings: dict[int, RankBinding] = {}
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        nodes = [job.allocation.nodes[index] for index in job.job_map.nodes]
        self._daemons = Daemons(nodes, agents, job.python, job.deadlines.fanout, self)
        raise_file_limit()
        self._output = OutputForwarder(job, self._output_broken)
        self._stdin: StdinForwarder | None = None

    async def run(self) -> Verdict:
        """Go through the steps; see the module."""
        with SignalRelay(self._loop, self) as signals:
            try:
                await signals.until_interrupted(self._start())
                await self._run_ranks()
            finally:
                await self._daemons.end()
                if self._stdin is not None:
                    self._stdin.close()
                await self._output.drain()
            return self._conclude()

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
        await self._prepare()
        self._observer.started()
        if self._job.report_bindings:
            for rank, binding in sorted(self._bindings.items()):
                place = self._job.job_map.placements[rank]
                self._output.say(f"rank {rank} on {self._node_name(place.node)}: {describe_binding(binding)}\n")
        self._timeline.begin("start-ranks")
        for link in self._links:
            link.send({"type": "launch"})
        self._running = True

    def _tell_nodes(self) -> None:
        if self._job.output.verbose >= 1:
            nodes = f"{len(self._links)} nodes" if len(self._links) > 1 else "1 node"
            self._say(f"{nodes} reported after {self._timeline.phases()['launch-daemons']:.1f} s")
        if self._job.output.verbose >= 2:
            for index, facts in self._facts().items():
                size = f"{len(facts.cpus)} CPUs, {len(facts.gpus)} GPUs"
                python = f"python {facts.python} ({facts.executable})"
                self._say(f"{self._node_name(index)}: {facts.hostname}, {size}, {python}, {', '.join(facts.addresses)}")

    async def _prepare(self) -> None:
        """Give every node its ranks and hear that they can start; nothing runs anywhere unless all can."""
        job = self._job
        facts = self._facts()
        self._bindings = bind_ranks(job.allocation, job.job_map, facts, job.gpu, job.cpu)
        for index, message in preparations(job, facts, self._bindings, self._output.window).items():
            link = self._daemons.links[index]
            self._open_streams(link, message)
            self._answers[index] = self._loop.create_future()
            if link.living:
                link.send(message)
            else:
                self.gone(link, "its daemon ended")
        await asyncio.wait(self._answers.values(), timeout=job.deadlines.start)
        failures: list[NodeFailure] = []
        notes: dict[str, list[str]] = {}
        for index, answer in self._answers.items():
            name = self._node_name(index)
            if not answer.done():
                failures.append(NodeFailure(name, "timeout", "no answer to the preparation", job.deadlines.start))
            elif answer.result()["type"] == "refused":
                for problem in answer.result()["problems"]:
                    failures.append(NodeFailure(name, problem["cause"], problem["detail"], 0.0))
            else:
                told = answer.result()["notes"]
                if job.output.verbose:
                    told = [*told, *facts[index].notes, f"runs {answer.result()['program']}"]
                for note in told:
                    notes.setdefault(note, []).append(name)
        if failures:
            raise fold_failures(failures, len(self._answers))
        for note, names in notes.items():
            self._say(f"{fold(names)}: {note}")

    def _open_streams(self, link: NodeLink, message: dict[str, Any]) -> None:
        for spec in message["ranks"]:
            link.open_output(stream_channel(spec["rank"], STDOUT), message["window"])
            if not message["merge_stderr"]:
                link.open_output(stream_channel(spec["rank"], STDERR), message["window"])
            if spec["stdin"]:
                link.open_input(stream_channel(spec["rank"], STDIN), message["window"])

    async def _run_ranks(self) -> None:
        """Wait until every rank is finished and every node has swept, within the time limits."""
        self._timeline.begin("run")
        self._stdin = StdinForwarder(self._stdin_targets())
        heartbeat = self._loop.create_task(self._beat())
        limit = self._job.deadlines.timeout
        try:
            if limit is not None:
                try:
                    await asyncio.wait_for(self._done.wait(), limit)
                except asyncio.TimeoutError:
                    detail = f"the time limit of {limit:g} s is over"
                    self.stop_job(Verdict(ExitCode.TIMEOUT, "timeout", detail=detail), [signal.SIGTERM])
            await self._done.wait()
        finally:
            heartbeat.cancel()
        self._timeline.begin("end")

    async def _beat(self) -> None:
        """Ask every node for a sign of life, and give up the silent ones."""
        silence = self._job.deadlines.heartbeat
        pause = silence / 4
        while True:
            slept_at = time.monotonic()
            await asyncio.sleep(pause)
            now = time.monotonic()
            if now - slept_at > 2 * pause:
                continue  # it was us who slept: stopped, or a machine at its limit
            for link in self._links:
                if now - link.last_heard > silence:
                    link.give_up(f"no sign of life for {now - link.last_heard:.0f} s")
                elif link.living:
                    link.ping()

    def _conclude(self) -> Verdict:
        verdict = verdict_of_ranks(self._state)
        if self._outcome is not None:
            _, stopped, finished = self._state.sort_out(None)
            verdict = dataclasses.replace(self._outcome, stopped=stopped, finished=finished)
        elif verdict.first is not None:
            verdict = dataclasses.replace(
                verdict,
                host=self._node_name(self._job.job_map.placements[verdict.first.rank].node),
                last_lines=self._output.last_lines(verdict.first.rank),
            )
        elif self._output.lost is not None:
            verdict = dataclasses.replace(verdict, exit_code=ExitCode.OUTPUT_LOST, cause="output-lost")
        self._timeline.begin("")
        ended = max((end.clock for end in self._state.ends.values()), default=time.monotonic())
        if verdict.first is not None:
            ended = verdict.first.clock
        seconds = round(max(0.0, ended - self._timeline.first_start()), 6)
        verdict = dataclasses.replace(verdict, swept=tuple(self._swept), seconds=seconds)
        if self._job.report_file is not None:
            from mpilaunch.head.report import report, write_report  # few launches write one

            data = report(self._job, self._facts(), self._bindings, self._state, self._timeline, verdict)
            write_report(self._job.report_file, data)
        return verdict

    # LinkEvents

    def message(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Take what a daemon says."""
        kind = message["type"]
        if kind in ("ready", "refused"):
            answer = self._answers.get(link.node.index)
            if answer is not None and not answer.done():
                answer.set_result(message)
        elif kind == "started":
            for rank, _pid, clock in message["ranks"]:
                self._timeline.rank_started(rank, link.head_clock(clock))
                self._state.happened(rank, "started")
            for rank, number, clock in message["failed"]:
                self._exited(RankEnd(rank, errno=number, clock=link.head_clock(clock)))
        elif kind == "exited":
            self._rank_exited(link, message)
        elif kind == "fence":
            pairs = self._fences.enter(link.node.index, message["ranks"], message["pairs"])
            if pairs is not None:
                for one in self._links:
                    one.send({"type": "fence", "pairs": pairs})
            self._check_fence()
        elif kind == "note":
            self._say(f"{link.node.name}: {message['text']}")
        elif kind == "finished":
            self._swept += [(link.node.name, pid, name) for pid, name in message["swept"]]
            self._finished_nodes.add(link.node.index)
            self._check_done()

    def data(self, link: NodeLink, channel: int, data: bytes) -> None:
        """Take bytes of a rank's output."""
        self._output.data(link, channel, data)

    def end(self, link: NodeLink, channel: int) -> None:
        """A rank's stdout or stderr has ended; with the last of them the rank is drained."""
        self._output.end(channel)
        rank = rank_of(channel)
        if self._output.drained(rank):
            self._state.happened(rank, "drained")
            self._check_done()

    def credit(self, link: NodeLink, channel: int) -> None:
        """A rank has read of its stdin."""
        if self._stdin is not None:
            self._stdin.more_credit()

    def gone(self, link: NodeLink, reason: str) -> None:
        """A node cannot be heard any more: by our own wish, before the job ran, or as a loss."""
        index = link.node.index
        answer = self._answers.get(index)
        if answer is not None and not answer.done():
            problem = {"cause": "daemon-failed", "detail": f"{reason}\n{link.last_words}".strip()}
            answer.set_result({"type": "refused", "problems": [problem]})
        if not self._running or index in self._finished_nodes:
            return
        self._finished_nodes.add(index)
        for rank in self._ranks_of[index]:
            self._state.happened(rank, "lost")
        words = f"\n{link.last_words}" if link.last_words else ""
        detail = f"{link.node.name}: lost: {reason}{words}"
        self.stop_job(Verdict(ExitCode.NODE_LOST, "node-lost", host=link.node.name, detail=detail), [signal.SIGTERM])
        self._check_done()

    # Signals and the end

    def interrupt(self, number: int, times: int) -> None:
        """The user or a scheduler asked for the end; the second time, at once."""
        detail = f"{signal_name(number)} to mpilaunch"
        first = [signal.SIGINT, signal.SIGTERM] if number == signal.SIGINT else [signal.SIGTERM]
        if times == 1:
            self._say(f"{detail}: the ranks have {self._job.deadlines.grace:g} s to end; once more kills them now")
        self.stop_job(Verdict(128 + number, "interrupted", detail=detail), first if times == 1 else [], again=True)

    def forward(self, number: int) -> None:
        """Send a signal to every rank."""
        for link in self._links:
            link.send({"type": "signal", "signal": number})

    def stop_job(self, outcome: Verdict | None, signals: Sequence[int], *, again: bool = False) -> None:
        """End every rank: the signals one after the other, with the grace time shared among them, then SIGKILL.

        Args:
            outcome: the verdict when it is not for the ranks to give; the first one counts.
            again: a stop that is under way is replaced.
        """
        if not self._stopping:
            self._stopping = True
            self._outcome = outcome
        elif not again:
            return
        wait = self._job.deadlines.grace / max(1, len(signals))
        for link in self._links:
            link.send({"type": "stop", "steps": [[int(number), wait] for number in signals]})
        # Whoever asked for the end at once is not kept waiting for output that nobody takes either.
        self._loop.call_later(wait * len(signals) + OVERDUE, self._give_up_overdue, not signals)

    def _give_up_overdue(self, at_once: bool) -> None:
        """Give up the nodes that should have ended their ranks by now; `at_once`: that have not finished."""
        for link in self._links:
            if link.node.index in self._finished_nodes:
                continue
            if at_once or any(self._state.lives(rank) for rank in self._ranks_of[link.node.index]):
                link.give_up("its daemon did not end the ranks in time")

    def _rank_exited(self, link: NodeLink, message: dict[str, Any]) -> None:
        rank = message["rank"]
        if self._stdin is not None:
            self._stdin.rank_ended(rank, message["stdin_read"])
        self._exited(
            RankEnd(
                rank,
                code=message["code"],
                signal=message["signal"],
                core=message["core"],
                mpi=message["mpi"],
                stopped=message["stopped"],
                clock=link.head_clock(message["clock"]),
            )
        )

    def _exited(self, end: RankEnd) -> None:
        self._state.happened(end.rank, "exited", end)
        if end.failed:
            self.stop_job(None, [signal.SIGTERM])
        self._check_fence()
        self._check_done()

    def _check_fence(self) -> None:
        """A rank that has ended comes to no fence any more: without this, those that wait there would wait for ever."""
        if self._fences.waiting and not self._stopping and self._state.missed():
            self.stop_job(None, [signal.SIGTERM])

    def _check_done(self) -> None:
        if self._running and self._state.ended and len(self._finished_nodes) == len(self._ranks_of):
            self._done.set()

    def _output_broken(self, error: OSError) -> None:
        """Nobody reads our stdout any more: as for any filter, that ends the job, without a word."""
        if error.errno == errno.EPIPE:
            outcome = Verdict(128 + signal.SIGPIPE, "interrupted", detail="nobody reads the output any more")
            self.stop_job(outcome, [signal.SIGTERM])

    # Small things

    @property
    def _links(self) -> list[NodeLink]:
        return list(self._daemons.links.values())

    def _facts(self) -> dict[int, NodeFacts]:
        return {index: link.facts for index, link in self._daemons.links.items() if link.facts is not None}

    def _node_name(self, index: int) -> str:
        return self._job.allocation.nodes[index].name

    def _say(self, text: str) -> None:
        line = self._observer.note(text)
        if line:
            self._output.say(line)

    def _stdin_targets(self) -> dict[int, NodeLink]:
        placements = self._job.job_map.placements
        return {place.rank: self._daemons.links[place.node] for place in placements if self._job.gets_stdin(place.rank)}


def raise_file_limit() -> None:
    """Let the head open as many files as it may: a node takes up to four, a rank up to two."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
