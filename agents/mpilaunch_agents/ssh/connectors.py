"""Distributes the connections of an agent over several processes, the connectors, for more nodes than one core can serve.

A connector knows nothing of jobs and relays bytes. The head has a socket to it for each node, which has no name: no other
process can connect. It ends with the head. If a connector dies, its connections are lost like any others, and the head uses
the remaining connectors.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from mpilaunch.agent import Agent, AgentFailure, AgentOptions, Channel, ChannelEvents, CommandLineAgent, Node
from mpilaunch_agents.child import Child, dismiss

DEATH_SECONDS = 2.0
"""Time within which a connector that closed its connection must be dead."""
DEATH_POLL_SECONDS = 0.01

START = "import sys; sys.path[:] = sys.argv[1:]; from mpilaunch_agents.ssh.connector_process import main; main()"


class ConnectorsAgent:
    """Reaches nodes by an agent that runs in `count` connectors.

    Args:
        name, options: the connectors load it by these.
        agent: it, loaded in this process: its options are good, and it tells its command line.
    """

    def __init__(self, name: str, options: AgentOptions, agent: Agent, count: int) -> None:
        self._agent = agent
        self._connectors: list[_Connector] = []
        self._refused: OSError | None = None
        try:
            for _ in range(count):
                self._connectors.append(_Connector(name, options))
        except OSError as error:  # those that have started serve all nodes
            self._refused = error

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the command line of the other agent, for a user who looks for the reason of a failure."""
        return self._agent.argv(node, command) if isinstance(self._agent, CommandLineAgent) else []

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> Channel:
        from mpilaunch_agents.ssh.connector import ConnectorLost, connect  # not before asyncio is loaded

        while living := [connector for connector in self._connectors if not connector.child.ended]:
            connector = min(living, key=lambda connector: connector.node_count)
            connector.node_count += 1
            try:
                return await connect(connector.control, node, command, events)
            except ConnectorLost as lost:
                if not await connector.has_died():
                    raise AgentFailure("connection-closed", f"a process that makes connections: {lost}") from None
        if not self._connectors and self._refused is not None:
            cause = "process-limit" if self._refused.errno == errno.EAGAIN else "agent-failed"
            raise AgentFailure(cause, f"a process that makes connections: {self._refused.strerror}")
        raise AgentFailure("agent-failed", "the processes that make the connections have died")

    async def close(self) -> None:
        dismiss(connector.child for connector in self._connectors)
        for connector in self._connectors:
            connector.control.close()
        self._connectors.clear()


class _Connector:
    """The head's handle of a connector.

    Attributes:
        node_count: the number of nodes it was asked to open.
        control: hands it the ends of connections.
    """

    def __init__(self, name: str, options: AgentOptions) -> None:
        self.node_count = 0
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        with theirs:
            descriptor = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 10)
        try:
            self.child = Child([sys.executable, "-c", START, *sys.path], descriptor_3=descriptor)
        except OSError:
            self.control.close()
            raise
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
