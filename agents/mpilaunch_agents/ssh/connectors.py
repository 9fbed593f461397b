"""Distributes the connections of an agent over several processes, the connectors, for more nodes than one core can serve.

A connector knows nothing of jobs and relays bytes. The head connects to it once for each node, by a socket that accepts no
other process. It ends with the head. If a connector dies, its connections are lost like any others, and the head uses the
remaining connectors.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from mpilaunch.agent import AgentFailure, AgentOptions, Channel, ChannelEvents, CommandLineAgent, load
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents.child import Child, dismiss

DEATH_SECONDS = 2.0
"""Time within which a connector that closed its connection must be dead."""
DEATH_POLL_SECONDS = 0.01

START = "import sys; sys.path[:] = sys.argv[1:]; from mpilaunch_agents.ssh.connector import main; main()"


class ConnectorsAgent:
    """Reaches nodes by the agent `name` in `count` connectors; raises UsageError if it cannot be loaded."""

    def __init__(self, name: str, options: AgentOptions, count: int) -> None:
        options = options._replace(connectors=1, call_back=())
        self._agent = load(name, options)
        self._connectors = [_Connector(name, options) for _ in range(count)]

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the command line of the other agent, for a user who looks for the reason of a failure."""
        return self._agent.argv(node, command) if isinstance(self._agent, CommandLineAgent) else []

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> Channel:
        from mpilaunch_agents.ssh.connector import ConnectorLost, connect  # not before asyncio is loaded

        while living := [connector for connector in self._connectors if not connector.child.ended]:
            connector = min(living, key=lambda connector: connector.node_count)
            connector.node_count += 1
            try:
                return await connect(connector.address, node, command, events)
            except ConnectorLost as lost:
                if not await connector.has_died():
                    raise AgentFailure("connection-closed", f"a process that makes connections: {lost}") from None
        raise AgentFailure("agent-failed", "the processes that make the connections have died")

    async def close(self) -> None:
        dismiss(connector.child for connector in self._connectors)
        self._connectors.clear()


class _Connector:
    """The head's handle of a connector; `node_count` is the number of nodes it was asked to open."""

    def __init__(self, name: str, options: AgentOptions) -> None:
        self.node_count = 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(b"")  # the kernel chooses the name (unix(7))
            listener.listen(socket.SOMAXCONN)
            self.address: bytes = listener.getsockname()
            descriptor = fcntl.fcntl(listener.fileno(), fcntl.F_DUPFD_CLOEXEC, 10)
        try:
            self.child = Child([sys.executable, "-c", START, *sys.path], descriptor_3=descriptor)
        finally:
            os.close(descriptor)
        # Its stdin is also its lifeline. The options must not show in a list of processes, and they fit into a pipe.
        with suppress(OSError):  # its death is reported when a node is opened
            os.write(self.child.stdin, json.dumps([name, options._asdict()]).encode() + b"\n")

    async def has_died(self) -> bool:
        """Return whether it dies within DEATH_SECONDS: the kernel closes its sockets before it counts as dead."""
        import asyncio  # loaded by now

        deadline = time.monotonic() + DEATH_SECONDS
        while not self.child.ended:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(DEATH_POLL_SECONDS)
        return True
