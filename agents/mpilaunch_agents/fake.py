"""The agent `fake`: simulated nodes for tests, demonstrations and docs. It never uses the network.

A node's name selects its behaviour; digits at the end of the name are ignored. A name that is a cause of
`mpilaunch.agent.CAUSES` ("connection-refused", "timeout2") fails with that cause, and `BEHAVIOURS` below has further names;
all other nodes work. A table given by the caller takes precedence.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mpilaunch.agent import CAUSES, AgentFailure, AgentOptions, ChannelEvents, Node
from mpilaunch_agents.process import ProcessAgent, ProcessChannel


class Behaviour(NamedTuple):
    """The behaviour of a simulated node; the default is to run the command on this machine.

    Attributes:
        failure: the cause with which opening fails, "" for none.
        delay: seconds before anything happens.
        banner: a line printed before the command's output.
        exit_code: exit with this code instead of running the command.
        stderr: a line written to stderr before anything else.
    """

    failure: str = ""
    delay: float = 0.0
    banner: str = ""
    exit_code: int | None = None
    stderr: str = ""


WORKING = Behaviour()
BEHAVIOURS = {
    "slow": Behaviour(delay=0.5),
    "banner": Behaviour(banner="Welcome. All use of this system is recorded."),
    "exit": Behaviour(exit_code=3, stderr="this account is currently not available"),
}


class FakeAgent(ProcessAgent):
    """Runs commands on this machine, or fails, according to each node's behaviour; a `timeout` node does after connect_timeout.

    Args:
        nodes: behaviours by node name.
    """

    def __init__(self, options: AgentOptions, nodes: Mapping[str, Behaviour] | None = None) -> None:
        super().__init__(options)
        self._nodes = nodes or {}

    def behaviour(self, name: str) -> Behaviour:
        kind = name.rstrip("0123456789").rstrip("-")
        return self._nodes.get(name) or BEHAVIOURS.get(kind) or (Behaviour(failure=kind) if kind in CAUSES else WORKING)

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> ProcessChannel:
        behaviour = self.behaviour(node.name)
        await asyncio.sleep(self.options.connect_timeout if behaviour.failure == "timeout" else behaviour.delay)
        if behaviour.failure:
            raise AgentFailure(behaviour.failure, f"{node.name}: {CAUSES[behaviour.failure]}")
        return await super().open(node, command, events)

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the command, run by a shell that simulates the node where needed."""
        behaviour = self.behaviour(node.name)
        script = f"printf '%s\\n' {shlex.quote(behaviour.stderr)} >&2; " if behaviour.stderr else ""
        script += f"printf '%s\\n' {shlex.quote(behaviour.banner)}; " if behaviour.banner else ""
        script += f"exit {behaviour.exit_code}; " if behaviour.exit_code is not None else ""
        return ["sh", "-c", script + 'exec "$@"', "sh", *command] if script else command
