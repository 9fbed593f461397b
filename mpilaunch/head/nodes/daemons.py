"""Start a daemon on every node, or fail with one error for all that did not start; ping the daemons, and release them.

Every node is tried, so one launch reports everything that is wrong. `--fanout` bounds the number of concurrent contacts, and
`--start-timeout` all of them together. A connection that closed before the hello is tried again, since limits such as sshd's
MaxStartups drop connections at random under load; so is a pod that does not run yet.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from mpilaunch.agent import PYTHON_TOO_OLD, Agent, AgentFailure, Channel, ChannelEnd, CommandLineAgent
from mpilaunch.defaults import RETRIED, RETRIED_PATIENTLY
from mpilaunch.errors import UsageError
from mpilaunch.head.nodes import bundle
from mpilaunch.head.nodes.bundle import NO_BUNDLE, SPOILT
from mpilaunch.head.nodes.link import FIRST_PAUSE, LONGEST_PAUSE, LinkEvents, NodeLink, Replacement
from mpilaunch.head.os_limits import process_limits, raise_file_limit
from mpilaunch.head.tasks import cancel_all, start
from mpilaunch.hosts.allocation import Node
from mpilaunch.job.spec import JobSpec
from mpilaunch.wire.frames import GO
from mpilaunch_agents.registry import reconnect_time, row_of

if TYPE_CHECKING:
    from mpilaunch.head.nodes.failures import NodeFailure
    from mpilaunch.head.standby.client import KeeperClient

PROGRESS_SECONDS = 5.0
"""Longest time between two progress reports."""
STANDBY_PATIENCE = 3.0
"""Seconds in which a standby daemon must report; then another daemon is started in its place."""
ENDING = 5.0
"""Seconds in which a released daemon must end; then its channel is cut."""
Progress = Callable[[int, int, Collection[str]], None]
"""Called on each change and every PROGRESS_SECONDS: nodes started, of how many, and the names of the others."""


class Daemons:
    """The daemons of one job.

    Attributes:
        links: the links by the index of the node.
    """

    def __init__(self, job: JobSpec, agents: Mapping[str, Agent], *, say: Callable[[str], None] = lambda text: None) -> None:
        self._agents, self._say = agents, say
        self._job, self._python, self._deadlines = job, job.python or "python3", job.deadlines
        self._again = RETRIED_PATIENTLY if job.patient else RETRIED
        self._contacts = asyncio.Semaphore(job.fanout)
        self._began = time.monotonic()
        self._refused: dict[int, tuple[str, str]] = {}
        self._reconnecting: set[asyncio.Task[None]] = set()
        self.links: dict[int, NodeLink] = {}
        self._keeper_client: KeeperClient | None = None
        self._hung: set[int] = set()
        self._heartbeat: asyncio.Task[None] | None = None

    def add(self, nodes: Sequence[Node], events: LinkEvents, *, standby: bool = True) -> None:
        """Make the links of the first nodes.

        Args:
            events: what these nodes, and those that join later, report to.
            standby: whether standby daemons may be used.
        """
        raise_file_limit(self._job, nodes)
        self._events = events
        self.links |= {node.index: self.make_link(node) for node in nodes}
        if standby and any(not node.here for node in nodes):
            from mpilaunch.head.standby.client import KeeperClient  # this machine's daemons never stand by

            self._keeper_client = KeeperClient(self._job.agent, *self.boot())

    def send_all(self, message: dict[str, Any]) -> None:
        for link in list(self.links.values()):
            link.send(message)

    async def start(self, deadline: float, progress: Progress) -> None:
        """Start all within `deadline` seconds; raises one LaunchError for all nodes that did not start."""
        await self._start(list(self.links), self._began + deadline, progress)

    async def join(self, nodes: Sequence[Node], deadline: float) -> None:
        """Start daemons on further nodes, as `start` does, except where one runs already; raises UsageError too."""
        new = [node for node in nodes if node.index not in self.links]
        for name in {node.agent for node in new}:
            self._agents[name]  # load it here: one error for an agent, not one for each node
        if not new:
            return
        self.links |= {node.index: self.make_link(node) for node in new}
        try:
            await self._start([node.index for node in new], time.monotonic() + deadline, lambda *state: None)
        finally:
            for node in new:
                if not self.links[node.index].reported:
                    # The job continues without this node and may try it again.
                    self.links.pop(node.index).give_up("it had not reported")

    async def contact(self, index: int, seconds: float) -> NodeFailure | None:
        """Start one within `seconds`; return why it did not start, or None."""
        self._begin_to_beat()
        task = asyncio.ensure_future(self._start_node(index))
        try:
            await asyncio.wait([task], timeout=seconds)
        finally:
            in_time = task.done()
            await cancel_all([task])
        return task.result() if in_time else self._late(index)

    def _begin_to_beat(self) -> None:
        if self._heartbeat is None:  # a daemon ends when it hears nothing of the head, so this begins with the first contact
            self._heartbeat = asyncio.ensure_future(self.beat())

    async def _start(self, indexes: list[int], until: float, progress: Progress) -> None:
        waiting = {index: self.links[index].node.name for index in indexes}
        self._begin_to_beat()

        async def start_node(index: int) -> NodeFailure | None:
            failure = await self._start_node(index)
            del waiting[index]
            report()
            return failure

        def report() -> None:
            progress(len(indexes) - len(waiting), len(indexes), waiting.values())

        report()
        tasks = {index: asyncio.ensure_future(start_node(index)) for index in indexes}
        try:
            pending = set(tasks.values())
            while pending and (left := until - time.monotonic()) > 0:
                _, pending = await asyncio.wait(pending, timeout=min(left, PROGRESS_SECONDS))
                if pending:
                    report()
        finally:
            late = {index for index, task in tasks.items() if not task.done()}
            await cancel_all(tasks[index] for index in late)
        failures = [failure for index in indexes if index not in late and (failure := tasks[index].result()) is not None]
        failures += map(self._late, late)
        if failures:
            from mpilaunch.head.nodes.failures import fold_failures

            failures.sort(key=lambda failure: failure.name)
            raise fold_failures(failures, len(indexes), self._job.allocation.unused_agent)

    async def beat(self) -> None:
        """Ping every node and lose the links of silent ones; does not return."""
        silence = self._deadlines.heartbeat
        pause = silence / 4
        while True:
            slept_at = time.monotonic()
            await asyncio.sleep(pause)
            now = time.monotonic()
            overslept = now - slept_at > 2 * pause  # this process was stopped or starved, so the nodes are not to blame
            for link in list(self.links.values()):
                if not link.channel.living:
                    continue
                if overslept or not link.reported:  # the start has its own deadline
                    link.channel.last_heard = now
                if now - link.channel.last_heard > silence:
                    link.lose(f"no sign of life for {now - link.channel.last_heard:.0f} s")
                else:
                    link.ping()

    async def end(self) -> None:
        """Release every daemon, wait until the channels have ended, and cut those that do not end."""
        await cancel_all(self._reconnecting)
        for link in self.links.values():
            if not link.reported:
                link.give_up("it had not reported")
            else:
                link.release()
        await self._wait_for_ends()
        for link in self.links.values():
            if link.channel.living:
                link.give_up("its daemon did not end")
        await self._wait_for_ends()
        if self._heartbeat is not None:
            await cancel_all([self._heartbeat])

    async def _wait_for_ends(self) -> None:
        living = [link.channel.ended for link in self.links.values() if link.channel.living]
        if living:
            await asyncio.wait(living, timeout=ENDING)

    def _late(self, index: int) -> NodeFailure:
        return self._failure(index, *self._refused.get(index, ("timeout", self.links[index].channel.last_output)))

    async def _start_node(self, index: int) -> NodeFailure | None:
        """Start one node, with retries; return why it did not start, or None."""
        pause = FIRST_PAUSE
        while True:
            cause, detail = await self._try_node(index)
            if not cause:
                return None
            if cause not in self._again:
                return self._failure(index, cause, detail)
            self._refused[index] = cause, detail
            from random import uniform  # only a dropped connection needs it

            await asyncio.sleep(pause * uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST_PAUSE)
            self.links[index] = self.make_link(self.links[index].node)

    async def _try_node(self, index: int) -> tuple[str, str]:
        """Contact one node once; return (cause, detail) of the failure, ("", "") when its daemon has reported."""
        link = self.links[index]
        async with self._contacts_of(link.node):
            began = time.monotonic()
            try:
                channel, payload = await self.open(link)
            except AgentFailure as failure:
                limits = f"; {process_limits()}" if failure.cause == "process-limit" else ""
                return failure.cause, failure.detail + limits
            link.opened(channel, payload)
            self.greet(link)
            await asyncio.wait([link.first_news], timeout=STANDBY_PATIENCE if payload == GO else None)
            link.start_seconds = time.monotonic() - began
            if not link.first_news.done():
                self._hung.add(index)
                link.give_up("the daemon that stood by does not answer")
        return ("", "") if link.reported else _explain_silence(link)

    def _contacts_of(self, node: Node) -> AbstractAsyncContextManager[None]:
        """Return what bounds the contacts; an agent that starts many nodes together needs to know all of them."""
        return nullcontext() if row_of(node.agent).together else self._contacts

    def greet(self, link: NodeLink) -> None:
        """Send the first message to a daemon."""
        link.send({"type": "limits", **self._deadlines.silence_limits()})

    def boot(self) -> tuple[list[str], bytes]:
        """Return the command that starts a daemon, and the bundle to send."""
        payload = bundle.load()
        return bundle.boot_command(self._python, payload), payload

    def make_link(self, node: Node) -> NodeLink:
        replacement = Replacement(reconnect_time(node.agent, self._deadlines.reconnect), self._lost)
        return NodeLink(node, self._events, replacement)

    async def open(self, link: NodeLink) -> tuple[Channel, bytes]:
        """Return a channel to a daemon and the first bytes to send; raises AgentFailure."""
        node = link.node
        if node.here:
            return await self._agents[node.agent].open(node, bundle.local_command(), link.channel), b""
        command, payload = self.boot()
        if self._keeper_client is not None and node.index not in self._hung:
            channel = await self._keeper_client.take(node, link.channel)
            if channel is not None:
                return channel, GO
        return await self._agents[node.agent].open(node, command, link.channel), payload

    def _lost(self, link: NodeLink, reason: str) -> None:
        """Replace the lost channel of a node whose ranks run."""
        from mpilaunch.head.nodes.reconnect import reconnect  # most launches lose no channel

        def failed(error: BaseException) -> None:
            link.give_up(f"its connection was lost, and could not be made again: {error!r}")  # an agent may be third-party code

        agent = self._agents[link.node.agent]
        start(self._reconnecting, reconnect(link, reason, agent, self._python, self._contacts, self._say), failed)

    def _failure(self, index: int, cause: str, detail: str) -> NodeFailure:
        from mpilaunch.head.nodes.failures import NodeFailure  # most launches have no failure

        node = self.links[index].node
        agent, command = self._agents[node.agent], ""
        if cause == "agent-failed" and isinstance(agent, CommandLineAgent):
            from mpilaunch.job.output.masking import mask_argv  # only this failure needs it

            with suppress(UsageError):  # the agent has failed for the same reason
                argv = agent.argv(node, [self._python, "--version"])
                command = shlex.join(argv if self._job.show_secrets else mask_argv(argv))
        return NodeFailure(node.name, cause, detail, time.monotonic() - self._began, index, command)


MESSAGES = {
    "process-limit": ("Resource temporarily unavailable", "annot fork", "fork failed", "can't start new thread"),
    "file-limit": ("Too many open files", "shared object file: Error 24"),
    # Python 2 and Python 3 before 3.4.
    "python-too-old": ("Unknown option: -I",),
    "login-disabled": ("This account is currently not available.",),
}
"""Cause -> messages of shells, ssh, nologin(8) and Python that show it, whatever the exit code."""


def _explain_silence(link: NodeLink) -> tuple[str, str]:
    """Return (cause, detail) for a channel that ended without a hello, from its exit code and last output."""
    if link.broke:
        return "protocol", link.broke
    output, end = link.channel.last_output, link.channel.end or ChannelEnd(None)
    code = end.exit_code
    if end.cause:
        return end.cause, output or end.error
    if code == PYTHON_TOO_OLD:
        return "python-too-old", output
    for cause, messages in MESSAGES.items():
        lines = [line for line in output.splitlines() if any(message in line for message in messages)]
        if lines:
            return cause, lines[-1]
    if code == 127 or (code in (1, 2, 126) and "python" in output and ("No such file" in output or "denied" in output)):
        return "python-missing", output
    if NO_BUNDLE in output:
        return "no-stdin", output
    if SPOILT in output:
        return "stdin-taken", SPOILT
    if "mpilaunch" in output and "Traceback" in output:
        return "daemon-failed", output
    # kubectl exits with 0 and without a message when its stream is lost.
    if code in (255, None) or (code == 0 and not output):
        return "connection-closed", output or end.error
    return "agent-failed", output or f"exit code {code}"
