"""The agent `kubectl`: reaches pods by `kubectl exec -i`, one process per channel.

No library supports every streaming protocol of API servers and every login method. kubectl's exit code 0 proves nothing,
since it also follows a lost stream: only the daemon's own messages count. A node's name is that of a pod or of a pod's host:
when there is no such pod, the next attempt looks up the host name.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence

from mpilaunch.agent import AgentFailure, AgentOptions, ChannelEnd, ChannelEvents, Node
from mpilaunch.asyncio_timeouts import timeout
from mpilaunch.text import last_line
from mpilaunch_agents.capture import capture
from mpilaunch_agents.kubernetes import pods
from mpilaunch_agents.process import ProcessAgent, ProcessChannel

LISTING_SECONDS = 1.0
"""How long a listing of the pods is reused: many nodes need one at the same time."""
LISTING_TIMEOUT = 30.0
"""Seconds that kubectl has for a listing."""


class KubectlAgent(ProcessAgent):
    """Runs `kubectl exec -i POD -- COMMAND`. A node's own namespace and container override those of the options."""

    outlived = True
    """A command in a pod outlives its kubectl: see `callback`."""

    def __init__(self, options: AgentOptions) -> None:
        super().__init__(options)
        self._missing: set[str] = set()
        self._pods: dict[int, str] = {}
        self._listings: dict[str | None, tuple[float, asyncio.Task[str]]] = {}

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> ProcessChannel:
        if self._pod(node) in self._missing:
            pod = pods.pod_of_host(node.name, await self._listing(self._namespace(node)))
            if pod is not None:
                self._pods[node.index] = pod
        return await super().open(node, command, events)

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        return pods.exec_argv(
            self._pod(node),
            command,
            namespace=self._namespace(node),
            container=node.container or self.options.container,
            context=self.options.context,
        )

    async def close(self) -> None:
        for _, task in self._listings.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in self._listings.values()), return_exceptions=True)
        await super().close()

    def _pod(self, node: Node) -> str:
        return self._pods.get(node.index) or pods.pod_and_namespace(node.name)[0]

    def _namespace(self, node: Node) -> str | None:
        """Return the namespace of a node; one in its name takes precedence."""
        return pods.pod_and_namespace(node.name)[1] or node.namespace or self.options.namespace

    async def _listing(self, namespace: str | None) -> str:
        """Return the pods of a namespace in the format of `pods.pod_of_host`, "" when listing them fails."""
        started, task = self._listings.get(namespace, (0.0, None))
        if task is None or time.monotonic() > started + LISTING_SECONDS:
            task = asyncio.ensure_future(self._list(namespace))
            self._listings[namespace] = time.monotonic(), task
        return await asyncio.shield(task)

    async def _list(self, namespace: str | None) -> str:
        try:
            argv = pods.list_argv(namespace=namespace, context=self.options.context)
            async with timeout(LISTING_TIMEOUT):
                code, output, _ = await capture(argv)
        except (AgentFailure, asyncio.TimeoutError):
            return ""  # the exec that follows reports the failure
        return output if code == 0 else ""

    def explain(self, exit_code: int, stderr: str) -> ChannelEnd:
        """Distinguish kubectl's own failures from the command's exit code: they have exit code 1 and no REMOTE_EXIT."""
        if exit_code != 1 or pods.REMOTE_EXIT in stderr:
            return ChannelEnd(exit_code)
        self._missing.update(re.findall(r'pods "([^"]*)" not found', stderr))
        cause = pods.classify_kubectl_message(stderr) or "agent-failed"
        return ChannelEnd(exit_code, last_line(stderr) or "kubectl failed", cause)
