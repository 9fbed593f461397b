"""One launch from start to verdict: start the daemons, prepare and start the ranks, wait for their end.

Each step leads to the next or raises one LaunchError; in every case no daemon and no rank is left. What the nodes report
arrives in `NodeEvents`, signals to mpilaunch in `Interrupts`; when a rank fails or a node is lost, `Ends` decides whether the
other ranks end, and `Stop` ends them.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from mpilaunch.agent import Agent
from mpilaunch.errors import ExitCode, LaunchError
from mpilaunch.head.ending.ends import Ends
from mpilaunch.head.ending.faults import Faults
from mpilaunch.head.ending.interrupts import Interrupts
from mpilaunch.head.ending.nodes_done import NodesDone
from mpilaunch.head.ending.stop import Stop
from mpilaunch.head.ending.suspects import Suspects
from mpilaunch.head.mpi.services import MpiServices
from mpilaunch.head.node_events import NodeEvents
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.observe import Observer, Timeline, node_notes
from mpilaunch.head.observe.looks import Looks
from mpilaunch.head.output.forward import OutputForwarder
from mpilaunch.head.output.stdin import StdinForwarder
from mpilaunch.head.ranks import Ranks
from mpilaunch.head.signals import SignalRelay
from mpilaunch.head.starting.start_order import StartOrder
from mpilaunch.head.starting.world_starter import WorldStarter
from mpilaunch.head.tasks import start
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.hosts.nodeset import fold
from mpilaunch.job.preparation.world_facts import master_port
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState
from mpilaunch.job.verdict import Verdict
from mpilaunch.job.worlds import first_worlds
from mpilaunch.placement.gpu_binding import describe_binding
from mpilaunch.text import printable

if TYPE_CHECKING:
    from mpilaunch.head.control.running import RunningJob
    from mpilaunch.head.ending.host_ends import HostEnds
    from mpilaunch.head.starting.independent_hosts import IndependentHosts


class Launch:
    """A running job; create it inside a running event loop.

    Attributes:
        ranks: the ranks of the job.
        nodes_done: the nodes that have finished or are lost.
    """

    def __init__(self, job: JobSpec, agents: Mapping[str, Agent], observer: Observer) -> None:
        self._job, self._observer, self._timeline, self._state = job, observer, Timeline(), JobState({})
        self._daemons = Daemons(job, agents, say=self._say)
        self._output = OutputForwarder(job, self._output_broken)
        self.ranks = Ranks(job)
        starter = WorldStarter(job, self._daemons, self._output, self.ranks, self._state, self._say)
        for world in first_worlds(job):
            starter.add(world)
        self.nodes_done = NodesDone(self._daemons, self.ranks, self._state, starter)
        is_done = self.nodes_done.is_done
        looks = Looks(self._daemons, self.ranks, self._state, self._output.silence)
        self._stop = Stop(job, self._daemons, self.ranks, self._state, self._output, looks, self._stopping, is_done)
        self._faults = Faults(self._stop.begin)
        suspects = Suspects(job, self._daemons, self.ranks, self._state, self._say, is_done)
        host_ends: HostEnds | None = None
        self._order: StartOrder | IndependentHosts
        make_interrupts: Callable[..., Interrupts] = Interrupts
        stdin: type[StdinForwarder] = StdinForwarder
        if not job.independent:
            self._order = StartOrder(job, self._daemons, self.ranks, self._state, starter, self._stop.begin)
        else:  # few launches are, and none of the others is to load these
            from mpilaunch.head.ending.peer_ends import host_ends as make_host_ends
            from mpilaunch.head.output.spooled_stdin import SpooledStdin
            from mpilaunch.head.starting.at_work import HostsAtWork
            from mpilaunch.head.starting.independent_hosts import IndependentHosts

            stdin = SpooledStdin
            host_ends = make_host_ends(
                len(job.job_map.nodes), job.output, self._say_as_it_is,
                None if job.continue_on_error else partial(self._stop.begin, None),
            )  # fmt: skip
            at_work = HostsAtWork(self._output.show_status)
            self._order = IndependentHosts(
                job, self._daemons, self.ranks, self._output, starter, self.nodes_done, host_ends, at_work, self._lose,
                self._faults.take, self._say,
            )  # fmt: skip
            if job.first_interrupt == "status":
                from mpilaunch.head.ending.host_interrupts import HostInterrupts

                make_interrupts = partial(HostInterrupts, at_work=at_work.states.values, tell_hosts=host_ends.tell_at_work)
        self._mpi = MpiServices(
            job, self._daemons, self.ranks, self._state, starter, self._say, self._warn, self._stop.begin, self._faults.take
        )
        readers = {place.rank: place.node for place in job.global_map.placements if job.gets_stdin(place.rank)}
        self._stdin = (stdin if len(readers) > 1 else StdinForwarder)(readers, self._daemons.links)
        self._interrupts = make_interrupts(job, self._daemons, self._stop, self._say, self._say_as_it_is)
        self._ends = Ends(
            job, self.ranks, self._state, self._order, self._mpi, self._stdin, self._stop, suspects, self.nodes_done,
            host_ends, self._say,
        )  # fmt: skip
        events = NodeEvents(
            self.ranks, self._state, self._timeline, self._output, self._stdin, self._mpi, starter, self._order, self._ends,
            self.nodes_done, self._faults, self._interrupts, looks, self._say,
        )  # fmt: skip
        self._daemons.add([job.allocation.nodes[index] for index in job.job_map.nodes], events)

    async def run(self, signals: SignalRelay) -> Verdict:
        """Run the job and return its verdict; signals go to this launch until it returns."""
        signals.receiver = self._interrupts
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
            self._interrupts.checkpoints.close()
            await self._output.drain()
            self._stop.close()
            self._ends.close()
            signals.receiver = None
        if self._faults.first is not None:
            raise self._faults.first
        return self._conclude()

    @property
    def running(self) -> RunningJob:
        """The launch as requests see it, while it runs."""
        from mpilaunch.head.control.running import RunningJob  # most jobs end without a request

        looks = self._stop.limit.looks
        return RunningJob(self._daemons, self.ranks, self._state, self._output, looks, self._stop)

    # Results, valid after `run`

    @property
    def lost_hosts(self) -> list[str]:
        """The names of the nodes that were lost when they had been told to start ranks."""
        links = (self._daemons.links.get(index) for index in sorted(self.nodes_done.lost))
        return [link.node.name for link in links if link is not None and link.state == "running"]

    @property
    def port(self) -> int:
        """MASTER_PORT of the ranks."""
        return master_port(self._job, self.ranks.worlds[0], self._facts())

    def report(self, verdict: Verdict) -> dict[str, Any]:
        """Return the data of the report (docs/report.md)."""
        from mpilaunch.head.observe.report import report  # few launches write one

        facts, bytes_of = self._facts(), self._output.bytes_of
        return report(self._job, facts, self.ranks, self._state, self._timeline, bytes_of, verdict)

    async def _start(self) -> None:
        """Start the daemons, check everything, then start the ranks."""
        self._faults.starting = asyncio.current_task()
        self._output.begin()
        if not self._job.independent:
            await self._start_daemons()
        self._timeline.begin("prepare")
        await self._order.prepare()
        self._observer.started()
        if self._job.report_bindings:
            facts = self._facts()
            for rank, binding in sorted(self.ranks.bindings.items()):
                cpus = facts[self.ranks.place(rank).node].cpus
                self._output.say(f"rank {rank} on {self.ranks.node_name(rank)}: {describe_binding(binding, cpus)}\n")
        self._timeline.begin("start-ranks")
        self._order.launch()
        self.nodes_done.started = True
        self._faults.starting = None

    async def _start_daemons(self) -> None:
        self._timeline.begin("launch-daemons")
        began = time.monotonic()
        try:
            await self._daemons.start(self._job.deadlines.start, self._observer.progress)
        except LaunchError as error:
            self._skip(error)
        for note in node_notes(self._job, self._facts(), time.monotonic() - began):
            self._say(note)

    def _skip(self, error: LaunchError) -> None:
        """Go on without the nodes that did not start, as if they were lost later; raises the error if that is not wanted."""
        if not self._job.skip_unreachable or not set(self._daemons.links) - set(error.nodes):
            raise error
        for index in error.nodes:
            self._lose(index)  # first: who hears of it may look at the link
            self._daemons.links.pop(index).give_up("it did not start")
        names = fold(error.nodes.values())
        message = error.message if names in error.message else f"{error.message}: {names}"
        detail = "\n".join((message, *error.context[:-1]))  # the last line is about ranks that did not start
        self._stop.outcome = Verdict(ExitCode.NODE_LOST, "node-lost", host=names, detail=detail, hint=error.hint)
        self._say(f"{message}; the other ranks continue")

    def _lose(self, index: int) -> None:
        """Go on without a node, which counts as lost."""
        self._ends.lose(index)
        self.nodes_done.check()

    async def _run_ranks(self) -> None:
        """Wait until every rank has ended and every node has swept up, within the time limits."""
        self._timeline.begin("run")
        self._stdin.more_credit()
        self._interrupts.checkpoints.begin()
        if not self._job.independent:  # else it counts for each host
            self._stop.limit.begin()
        tasks: set[asyncio.Task[None]] = set()
        if self._job.ready is not None:
            from mpilaunch.head.observe.readiness import watch  # few jobs are servers
            from mpilaunch.job.preparation.reach import server_address

            start(tasks, watch(self._job.ready, server_address(self._job, self._facts()), self._say), self._faults.take)
        try:
            await self.nodes_done.over.wait()
        finally:
            for task in tasks:
                task.cancel()
        self._timeline.begin("end")

    def _conclude(self) -> Verdict:
        verdict = self._ends.verdict()
        if verdict.first is not None:
            from mpilaunch.head.observe.explain import explain  # only a failed job needs it

            verdict = explain(verdict, verdict.first, self._output.last_lines, self._output.has_printed, self.ranks)
        if self._stop.outcome is not None:
            verdict = self._ends.verdict_of_stop(self._stop.outcome)
        elif verdict.cause == "ok" and self._output.lost:
            verdict = verdict._replace(exit_code=ExitCode.OUTPUT_LOST, cause="output-lost", detail=self._output.lost)
        verdict = self._stop.limit.explain(verdict)
        self._timeline.begin("")
        ends = self._state.ends.values() if verdict.first is None else [verdict.first]
        seconds = self._timeline.seconds_to(end.clock for end in ends)
        return verdict._replace(swept=tuple(self.nodes_done.swept), seconds=seconds, unread=self._output.unread)

    def _stopping(self) -> None:
        self._mpi.close()
        self._order.close()

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

    def _say_as_it_is(self, text: str) -> None:
        self._output.say(f"{printable(text)}\n")

    def _warn(self, text: str) -> None:
        self._output.say(self._observer.warning_line(text))
