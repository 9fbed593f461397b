"""The agent `local`: runs commands on this machine, as child processes of the head with the head's environment.

Every node is this machine, so a command can be started before the head knows for which node: see `agent.PrestartedAgent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mpilaunch.agent import AgentOptions, ChannelEnd
from mpilaunch_agents.child import Child, dismiss
from mpilaunch_agents.process import ProcessAgent

if TYPE_CHECKING:
    from mpilaunch.agent import Node


class LocalAgent(ProcessAgent):
    """Runs commands without any wrapper."""

    def __init__(self, options: AgentOptions) -> None:
        super().__init__(options)
        self._started: list[tuple[list[str], Child]] = []

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        return command

    def begin(self, command: Sequence[str], count: int) -> None:
        """Start a command until `count` of it run; a failure to start is reported when a channel is opened."""
        with suppress(OSError):
            while len(self._started) < count:
                self._started.append((list(command), Child(command)))

    def start(self, argv: Sequence[str]) -> Child:
        """Return an already started process of this command, or start one; raises OSError."""
        if self._started and self._started[0][0] == list(argv):
            return self._started.pop(0)[1]
        return super().start(argv)

    def dismiss(self) -> None:
        """End the started processes for which no channel was opened."""
        dismiss(child for _, child in self._started)
        self._started.clear()

    def killed(self, number: int) -> ChannelEnd:
        """Return the end of the command: the killed process is the command itself."""
        return ChannelEnd(128 + number)

    async def close(self) -> None:
        self.dismiss()
        await super().close()
