"""Start a daemon on every node: all nodes or none.

Every node is tried, so that one launch tells everything that is wrong. Contacts are bounded in number (`fanout`), and all of
them together by the start deadline. A connection that closed before the hello is tried again: limits such as sshd's
MaxStartups drop connections at random under load.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from mpilaunch.agent import Agent, AgentFailure
from mpilaunch.allocation import Node
from mpilaunch.head import bundle
from mpilaunch.head.failures import NodeFailure, fold_failures
from mpilaunch.head.link import LinkEvents, NodeLink

RETRY_CAUSES = ("connection-closed",)
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds before a dropped connection is tried again; doubled each time, with jitter."""
ENDING = 5.0
"""Seconds that a released daemon has to go before its channel is cut."""


class Daemons:
    """The daemons of one job.

    Args:
        nodes: the nodes to start.
        agents: the agents of all these nodes, by name.
        python: interpreter that runs the daemon on the nodes; None for `python3`.
        fanout: nodes contacted at a time.
        events: gets everything that the links have to tell.
    """

    def __init__(
        self, nodes: Sequence[Node], agents: Mapping[str, Agent], python: str | None, fanout: int, events: LinkEvents
    ) -> None:
        self.links = {node.index: NodeLink(node, events) for node in nodes}
        self._agents = agents
        self._python = python
        self._contacts = asyncio.Semaphore(fanout)
        self._bundle = b""
        self._began = time.monotonic()
        self._refused: dict[int, tuple[str, str]] = {}
        self._events = events

    async def start(self, deadline: float, progress: Callable[[Collection[str]], None]) -> None:
        """Start all within `deadline` seconds; raises one LaunchError for all nodes that did not start.

        `progress` is told the names of the nodes that are still awaited, whenever they change.
        """
        if any(link.node.agent != bundle.LOCAL for link in self.links.values()):
            self._bundle = bundle.build()
        waiting = {index: link.node.name for index, link in self.links.items()}

        async def start_node(index: int) -> NodeFailure | None:
            failure = await self._start_node(index)
            del waiting[index]
            progress(waiting.values())
            return failure

        progress(waiting.values())
        tasks = {index: asyncio.ensure_future(start_node(index)) for index in self.links}
        try:
            await asyncio.wait(tasks.values(), timeout=max(0.0, self._began + deadline - time.monotonic()))
        finally:
            late = {index for index, task in tasks.items() if not task.done()}
            for index in late:
                tasks[index].cancel()
            if late:
                await asyncio.wait([tasks[index] for index in late])
        failures = [failure for index in self.links if index not in late and (failure := tasks[index].result()) is not None]
        for index in late:
            cause, detail = self._refused.get(index, ("timeout", self.links[index].last_words))
            failures.append(self._failure(index, cause, detail))
        if failures:
            raise fold_failures(sorted(failures, key=lambda failure: failure.name), len(self.links))

    async def end(self) -> None:
        """Release every daemon that has reported, wait until its channel has ended, cut what does not end."""
        for link in self.links.values():
            if link.facts is None:
                link.give_up("it had not reported")
            else:
                link.release()
        living = [link.ended for link in self.links.values() if link.living]
        if living:
            await asyncio.wait(living, timeout=ENDING)
        cut = [link for link in self.links.values() if link.living]
        for link in cut:
            link.give_up("its daemon did not end")
        if cut:
            await asyncio.wait([link.ended for link in cut], timeout=ENDING)

    async def _start_node(self, index: int) -> NodeFailure | None:
        """Start one node; return why it did not start."""
        pause = FIRST_PAUSE
        while True:
            cause, detail = await self._try_node(index)
            if not cause:
                return None
            if cause not in RETRY_CAUSES:
                return self._failure(index, cause, detail)
            self._refused[index] = cause, detail
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST_PAUSE)
            self.links[index] = NodeLink(self.links[index].node, self._events)

    async def _try_node(self, index: int) -> tuple[str, str]:
        """Contact one node once; return (cause, detail) of the failure, ("", "") when its daemon has reported."""
        link = self.links[index]
        if link.node.agent == bundle.LOCAL:
            command, payload = bundle.local_command(), b""
        else:
            command, payload = bundle.boot_command(self._python or "python3", self._bundle), self._bundle
        async with self._contacts:
            try:
                channel = await self._agents[link.node.agent].open(link.node, command, link)
            except AgentFailure as failure:
                return failure.cause, failure.detail
            link.opened(channel, payload)
            await link.first_news
        if link.facts is not None:
            return "", ""
        return _why_no_hello(link)

    def _failure(self, index: int, cause: str, detail: str) -> NodeFailure:
        return NodeFailure(self.links[index].node.name, cause, detail, time.monotonic() - self._began)


def _why_no_hello(link: NodeLink) -> tuple[str, str]:
    """Say why a channel that was opened ended without a hello, from its exit code and its last words."""
    words = link.last_words
    code = link.end.exit_code if link.end is not None else None
    if link.end is not None and link.end.cause:
        return link.end.cause, words or link.end.error
    if code == bundle.PYTHON_TOO_OLD:
        return "python-too-old", words
    if code == 127 or (code in (1, 126) and "python" in words and ("No such file" in words or "denied" in words)):
        return "python-missing", words
    if "mpilaunch" in words and "Traceback" in words:
        return "daemon-failed", words
    if code in (255, None):
        return "connection-closed", words or (link.end.error if link.end is not None else "")
    return "agent-failed", words or f"exit code {code}"
