"""The agent `local`: the node is this machine, and the command a child process of the head with the head's environment.

Since every node is this machine, a command can be started before it is known for which of them: see `agent.PrestartedAgent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mpilaunch.agent import AgentOptions, ChannelEnd
from mpilaunch_agents.child import Child, dismiss
from mpilaunch_agents.process import ProcessAgent

if TYPE_CHECKING:
    from mpilaunch.hosts.allocation import Node


class LocalAgent(ProcessAgent):
    """Runs the command as it is."""

    def __init__(self, options: AgentOptions) -> None:
        super().__init__(options)
        self._begun: list[tuple[list[str], Child]] = []

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the command itself."""
        return command

    def begin(self, command: Sequence[str], count: int) -> None:
        """See to it that a command has been started so many times; what is wrong with it is told when a channel is opened."""
        with suppress(OSError):
            while len(self._begun) < count:
                self._begun.append((list(command), Child(command)))

    def start(self, argv: Sequence[str]) -> Child:
        """Return what was begun, or start it now; raises OSError."""
        if self._begun and self._begun[0][0] == list(argv):
            return self._begun.pop(0)[1]
        return super().start(argv)

    def dismiss(self) -> None:
        """End what was begun and no channel was opened for."""
        dismiss(child for _, child in self._begun)
        self._begun.clear()

    def killed(self, number: int) -> ChannelEnd:
        """Return the end of the command itself."""
        return ChannelEnd(128 + number)

    async def close(self) -> None:
        """Leave nothing."""
        self.dismiss()
        await super().close()
