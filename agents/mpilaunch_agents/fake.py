"""The agent `fake`: scripted nodes, for tests, demonstrations and docs. Nothing leaves this machine.

A node behaves as its name says, and digits at the end of the name only tell nodes apart: every cause of
`mpilaunch.agent.CAUSES` is a name ("connection-refused", "timeout2"), and so are those of `BEHAVIOURS` below; any other
name is a node that is well. A table given by the caller comes first.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpilaunch.agent import CAUSES, AgentFailure, AgentOptions, ChannelEvents
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents.process import ProcessAgent, ProcessChannel


@dataclass(frozen=True)
class Behaviour:
    """What a scripted node does; by default it runs the command here.

    Attributes:
        failure: the cause for which it cannot be reached, "" when it can.
        delay: seconds before it does anything.
        banner: a line that stands before the command's output.
        exit_code: ends with this instead of running the command.
        stderr: a line that it writes on stderr before all else.
    """

    failure: str = ""
    delay: float = 0.0
    banner: str = ""
    exit_code: int | None = None
    stderr: str = ""


WELL = Behaviour()
BEHAVIOURS = {
    "slow": Behaviour(delay=0.5),
    "banner": Behaviour(banner="Welcome. All use of this system is recorded."),
    "exit": Behaviour(exit_code=3, stderr="this account is currently not available"),
}


class FakeAgent(ProcessAgent):
    """Runs commands here, or does not, as the nodes' names or the table say.

    Args:
        options: what the user says to every agent; a `timeout` node takes `connect_timeout` seconds.
        nodes: behaviours by node name.
    """

    def __init__(self, options: AgentOptions, nodes: Mapping[str, Behaviour] | None = None) -> None:
        super().__init__(options)
        self._nodes = nodes or {}

    def behaviour(self, name: str) -> Behaviour:
        """Return what the node of this name does."""
        kind = name.rstrip("0123456789").rstrip("-")
        return self._nodes.get(name) or BEHAVIOURS.get(kind) or (Behaviour(failure=kind) if kind in CAUSES else WELL)

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> ProcessChannel:
        """Fail, or be slow, as scripted; else run the command."""
        behaviour = self.behaviour(node.name)
        await asyncio.sleep(self.options.connect_timeout if behaviour.failure == "timeout" else behaviour.delay)
        if behaviour.failure:
            raise AgentFailure(behaviour.failure, f"{node.name}: {CAUSES[behaviour.failure]}")
        return await super().open(node, command, events)

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the command, behind a shell that plays the node's part where it has one."""
        behaviour = self.behaviour(node.name)
        script = ""
        if behaviour.stderr:
            script += f"printf '%s\\n' {shlex.quote(behaviour.stderr)} >&2; "
        if behaviour.banner:
            script += f"printf '%s\\n' {shlex.quote(behaviour.banner)}; "
        if behaviour.exit_code is not None:
            script += f"exit {behaviour.exit_code}; "
        return ["sh", "-c", script + 'exec "$@"', "sh", *command] if script else command
