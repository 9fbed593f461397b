"""The agent `local`: the node is this machine, and the command a child process of the head with the head's environment."""

from __future__ import annotations

from collections.abc import Sequence

from mpilaunch.allocation import Node
from mpilaunch_agents.process import ProcessAgent


class LocalAgent(ProcessAgent):
    """Runs the command as it is."""

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the command itself."""
        return command
