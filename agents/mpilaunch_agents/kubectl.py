"""The agent `kubectl`: a pod is reached by `kubectl exec -i`, one process per channel.

kubectl is a program and not a library here: it alone speaks every protocol that API servers ask for, and knows every way to log
in. Its exit code 0 proves nothing: a stream that was lost gives it too, so only the daemon's own words count. Exit code 1 is
kubectl's own unless it says that it is the command's.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpilaunch.agent import ChannelEnd
from mpilaunch.allocation import Node
from mpilaunch_agents.pods import REMOTE_EXIT, classify_kubectl_words, exec_argv, last_line
from mpilaunch_agents.process import ProcessAgent


class KubectlAgent(ProcessAgent):
    """Runs `kubectl exec -i POD -- COMMAND`. A node's own namespace and container win over those of the options."""

    outlived = True
    """What runs in a pod goes on when kubectl is gone: see `callback`."""

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the call of kubectl."""
        return exec_argv(
            node.name,
            command,
            namespace=node.namespace or self.options.namespace,
            container=node.container or self.options.container,
            context=self.options.context,
        )

    def explain(self, exit_code: int, last_words: str) -> ChannelEnd:
        """Tell kubectl's own failures, all of which have exit code 1, from the command's exit codes."""
        if exit_code != 1 or REMOTE_EXIT in last_words:
            return ChannelEnd(exit_code)
        return ChannelEnd(
            exit_code, last_line(last_words) or "kubectl failed", classify_kubectl_words(last_words) or "agent-failed"
        )
