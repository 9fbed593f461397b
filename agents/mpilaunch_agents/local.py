"""The agent `local`: runs commands on this machine, as processes below the head with the head's environment.

Every node is this machine, so a command can be started before the head knows for which node: see `agent.PrestartedAgent`. Where
several nodes are this machine, one process loads the command and forks it for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mpilaunch.agent import AgentOptions, ChannelEnd
from mpilaunch_agents.child import Child, ForkedChild, ForkServer, dismiss
from mpilaunch_agents.process import ProcessAgent

if TYPE_CHECKING:
    from mpilaunch.agent import Node


class LocalAgent(ProcessAgent):
    """Runs commands without any wrapper."""

    def __init__(self, options: AgentOptions) -> None:
        super().__init__(options)
        self._command: list[str] = []
        self._started: Child | None = None
        self._fork_server: ForkServer | None = None

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        return command

    def begin(self, command: Sequence[str], fork_server: Sequence[str] = ()) -> None:
        """Start a command, and what forks it; a failure to start is reported when a channel is opened."""
        self._command = list(command)
        with suppress(OSError, AttributeError):  # of pidfd_open
            if self._started is None:
                self._started = Child(command)
            if fork_server and self._fork_server is None:
                self._fork_server = ForkServer(fork_server)

    def start(self, argv: Sequence[str]) -> Child:
        """Return an already started process of this command, or start one; raises OSError."""
        if list(argv) == self._command:
            if self._started is not None:
                child, self._started = self._started, None
                return child
            if self._fork_server is not None:
                with suppress(OSError):  # it was killed or stopped, or has met a limit
                    return ForkedChild(self._fork_server)
        return super().start(argv)

    def dismiss(self) -> None:
        """End the started processes for which no channel was opened."""
        if self._started is not None:
            dismiss([self._started])
            self._started = None
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None

    def killed(self, number: int) -> ChannelEnd:
        """Return the end of the command: the killed process is the command itself."""
        return ChannelEnd(128 + number)

    async def close(self) -> None:
        await super().close()
        self.dismiss()
