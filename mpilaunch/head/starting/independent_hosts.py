"""The start of independent hosts: the command of each starts as soon as its host is ready, whatever becomes of the others.

With a window, only so many hosts are at work at a time, and the next one begins when one is done. `--start-timeout` and
`--timeout` count for each host, from its first contact.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from mpilaunch.asyncio_timeouts import wait_at_most
from mpilaunch.head.ending.host_ends import HostEnds
from mpilaunch.head.ending.nodes_done import NodesDone
from mpilaunch.head.ending.stop import OVERDUE, OVERDUE_REASON
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.output.forward import OutputForwarder
from mpilaunch.head.ranks import Ranks
from mpilaunch.head.starting.world_starter import WorldStarter
from mpilaunch.head.tasks import start
from mpilaunch.job.preparation.messages import common_preparation, preparations
from mpilaunch.job.preparation.world_facts import WorldFacts
from mpilaunch.job.spec import JobSpec
from mpilaunch.wire.session import encode_shared

if TYPE_CHECKING:
    from mpilaunch.head.nodes.failures import NodeFailure
    from mpilaunch.head.starting.at_work import HostsAtWork


class IndependentHosts:
    """Runs the command of each host; takes the place of `StartOrder`, since these hosts wait for nothing.

    Args:
        lose: counts a node as lost.
        crashed: takes a fault of our own.
    """

    def __init__(
        self,
        job: JobSpec,
        daemons: Daemons,
        ranks: Ranks,
        output: OutputForwarder,
        starter: WorldStarter,
        nodes_done: NodesDone,
        ends: HostEnds,
        at_work: HostsAtWork,
        lose: Callable[[int], None],
        crashed: Callable[[BaseException], None],
        say: Callable[[str], None],
    ) -> None:
        self._job, self._daemons, self._starter, self._nodes_done, self._ends = job, daemons, starter, nodes_done, ends
        self._lose, self._crashed, self._say, self._at_work = lose, crashed, say, at_work
        (self._world,) = ranks.worlds
        self._tasks: set[asyncio.Task[None]] = set()
        # What the nodes are sent depends on nothing that they report.
        nothing = WorldFacts("", "", "")
        self._shared = encode_shared(common_preparation(job, self._world, nothing, output.window))
        self._waiting: dict[int, dict[str, Any]] = dict(preparations(job, self._world, nothing, {}))
        self._contacts = asyncio.Semaphore(job.fanout)
        self._window = asyncio.Semaphore(job.window) if job.window else nullcontext()

    async def prepare(self) -> None:
        """No host is prepared before its turn."""

    def launch(self) -> None:
        """Begin with all hosts, or as many as the window has room for."""
        for index in self._waiting:
            start(self._tasks, self._run(index), self._crashed)
        if len(self._waiting) > 1 and not self._job.output.quiet:
            self._at_work.show(len(self._waiting), self._tasks)

    def take_listening(self, link: NodeLink, message: dict[str, Any]) -> None:
        """No independent command waits for another to listen."""

    def rank_ended(self, rank: int, *, failed: bool) -> None:
        """No independent command waits for another."""

    def close(self) -> None:
        """Start no further command, since the job ends."""
        for task in self._tasks:
            task.cancel()
        waiting, self._waiting = list(self._waiting), {}
        self._ends.not_started([self._job.allocation.nodes[index].name for index in waiting])
        for index in waiting:
            self._lose(index)

    async def _run(self, index: int) -> None:
        """See one host through when its turn comes."""
        name = self._job.allocation.nodes[index].name
        async with self._window:
            try:
                await self._reach(index, name)
            finally:
                self._at_work.states.pop(index, None)

    async def _reach(self, index: int, name: str) -> None:
        """Reach a host, start its command, wait for its end."""
        async with self._contacts:
            self._at_work.states[index] = name, "connecting"
            limit = self._job.deadlines.timeout or math.inf
            began = time.monotonic()
            failures = await self._start(index, min(limit, self._job.deadlines.start))
            left = limit - (time.monotonic() - began)
        if not failures:
            self._at_work.states[index] = name, "command in progress"
            await self._see_through(self._daemons.links[index], left)
            return
        if self._waiting.pop(index, None) is not None:
            self._lose(index)
            self._daemons.links[index].give_up("its command did not start")
        if left <= 0:
            self._ends.timed_out(failures[0].name, limit)
        else:
            self._ends.unreached(failures)

    async def _start(self, index: int, seconds: float) -> list[NodeFailure]:
        """Start the command of a host within `seconds`; return why that failed."""
        until = time.monotonic() + seconds
        failure = await self._daemons.contact(index, seconds)
        if failure is not None:
            return [failure]
        link, number = self._daemons.links[index], self._world.number
        if self._job.output.verbose:
            self._say(f"{link.node.name}: reached after {link.start_seconds:.1f} s")
        self._starter.send_preparation(link, number, self._waiting[index], self._shared)
        failures = await self._starter.await_answers(number, {index: link}, max(0.0, until - time.monotonic()))
        if not failures and self._waiting.pop(index, None) is not None:
            self._starter.launch_on(link, number)
        return failures

    async def _see_through(self, link: NodeLink, seconds: float) -> None:
        """Wait until a host is done, end its command when the time is up, and let its daemon go."""
        index, deadlines = link.node.index, self._job.deadlines
        await wait_at_most(seconds, self._nodes_done.wait(index))
        if not self._nodes_done.is_done(index):
            self._ends.timed_out(link.node.name, deadlines.timeout or 0.0)
            link.send({"type": "stop", "steps": [[int(signal.SIGTERM), deadlines.grace]], "shared": False})
            await wait_at_most(deadlines.grace + OVERDUE, self._nodes_done.wait(index))
            if not self._nodes_done.is_done(index):
                self._lose(index)
                link.give_up(OVERDUE_REASON)
        link.release()
