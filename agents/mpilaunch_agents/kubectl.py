"""The agent `kubectl`: a pod is reached by `kubectl exec -i`, one process per channel.

kubectl is a program and not a library here: it alone speaks every protocol that API servers ask for, and knows every way to log
in. Its exit code 0 proves nothing: a stream that was lost gives it too, so only the daemon's own words count. Exit code 1 is
kubectl's own unless it says that it is the command's.

A node is called as a pod is, or as its host is: where there is no such pod, the next attempt looks for one of that host name.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence

from mpilaunch.agent import AgentOptions, ChannelEnd, ChannelEvents
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents.pods import (
    REMOTE_EXIT,
    classify_kubectl_message,
    exec_argv,
    last_line,
    list_argv,
    pod_and_namespace,
    pod_of_host,
)
from mpilaunch_agents.process import ProcessAgent, ProcessChannel

LISTING_SECONDS = 1.0
"""How long a list of pods counts as new: many nodes ask at once."""
LISTING_PATIENCE = 30.0
"""Seconds that kubectl has to list them."""


class KubectlAgent(ProcessAgent):
    """Runs `kubectl exec -i POD -- COMMAND`. A node's own namespace and container win over those of the options."""

    outlived = True
    """What runs in a pod goes on when kubectl is gone: see `callback`."""

    def __init__(self, options: AgentOptions) -> None:
        super().__init__(options)
        self._missing: set[str] = set()
        self._pods: dict[int, str] = {}
        self._listings: dict[str | None, tuple[float, asyncio.Task[str]]] = {}

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> ProcessChannel:
        """Start kubectl; raises AgentFailure when it cannot be started."""
        if self._pod(node) in self._missing:
            found = pod_of_host(node.name, await self._listing(self._namespace(node)))
            if found is not None:
                self._pods[node.index] = found
        return await super().open(node, command, events)

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the call of kubectl."""
        return exec_argv(
            self._pod(node),
            command,
            namespace=self._namespace(node),
            container=node.container or self.options.container,
            context=self.options.context,
        )

    async def close(self) -> None:
        """Give back everything."""
        tasks = [task for _, task in self._listings.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().close()

    def _pod(self, node: Node) -> str:
        return self._pods.get(node.index) or pod_and_namespace(node.name)[0]

    def _namespace(self, node: Node) -> str | None:
        """Return the namespace of a node; one that its name tells comes first."""
        return pod_and_namespace(node.name)[1] or node.namespace or self.options.namespace

    async def _listing(self, namespace: str | None) -> str:
        """Return the pods of a namespace as `pod_of_host` reads them; nothing where they may not be listed."""
        made, task = self._listings.get(namespace, (0.0, None))
        if task is None or time.monotonic() > made + LISTING_SECONDS:
            task = asyncio.ensure_future(self._list(namespace))
            self._listings[namespace] = time.monotonic(), task
        return await asyncio.shield(task)

    async def _list(self, namespace: str | None) -> str:
        argv = list_argv(namespace=namespace, context=self.options.context)
        pipe = asyncio.subprocess.PIPE
        null = asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(*argv, stdin=null, stdout=pipe, stderr=null)
        except OSError:
            return ""  # the call that follows tells it better
        try:
            output, _ = await asyncio.wait_for(process.communicate(), LISTING_PATIENCE)
        except asyncio.TimeoutError:
            return ""
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return output.decode("utf-8", "replace") if process.returncode == 0 else ""

    def explain(self, exit_code: int, last_words: str) -> ChannelEnd:
        """Tell kubectl's own failures, all of which have exit code 1, from the command's exit codes."""
        if exit_code != 1 or REMOTE_EXIT in last_words:
            return ChannelEnd(exit_code)
        self._missing.update(re.findall(r'pods "([^"]*)" not found', last_words))
        return ChannelEnd(
            exit_code, last_line(last_words) or "kubectl failed", classify_kubectl_message(last_words) or "agent-failed"
        )
