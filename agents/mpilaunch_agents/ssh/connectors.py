"""Around an agent that makes its connections itself: several processes make them, for more nodes than one core serves.

A connector knows nothing of jobs and hands bytes on; the head connects to it once for each node, by a socket that takes nobody
else. It goes with the head. Should it die alone, what it had connected is lost, as by any other accident, and the others are
asked from then on.
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

from mpilaunch.agent import AgentFailure, AgentOptions, Channel, ChannelEvents, load
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents.child import Child, dismiss

DEATH_SECONDS = 2.0
"""Seconds that a connector has to be dead after it has hung up."""
DEATH_POLL_SECONDS = 0.01

START = "import sys; sys.path[:] = sys.argv[1:]; from mpilaunch_agents.ssh.connector import main; main()"


class ConnectorsAgent:
    """Reaches nodes as another agent does, through connectors that are given as many nodes each.

    Args:
        name, options: of the other agent; raises UsageError where it cannot be had.
        count: of the connectors.
    """

    def __init__(self, name: str, options: AgentOptions, count: int) -> None:
        options = options._replace(connectors=1, call_back=())
        load(name, options)
        self._connectors = [_Connector(name, options) for _ in range(count)]

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> Channel:
        """Have the command started; raises AgentFailure."""
        from mpilaunch_agents.ssh.connector import ConnectorLost, connect  # asyncio is loaded by now

        while living := [connector for connector in self._connectors if not connector.child.ended]:
            connector = min(living, key=lambda one: one.node_count)
            connector.node_count += 1
            try:
                return await connect(connector.address, node, command, events)
            except ConnectorLost as lost:
                if not await connector.dies():
                    raise AgentFailure("connection-closed", f"a process that makes connections: {lost}") from None
        raise AgentFailure("agent-failed", "the processes that make the connections have died")

    async def close(self) -> None:
        """Let the connectors go, with all that they have opened."""
        dismiss(connector.child for connector in self._connectors)
        self._connectors.clear()


class _Connector:
    """A connector, as the head sees it.

    Attributes:
        child: the process.
        address: of its socket.
        given: nodes that it was asked for.
    """

    def __init__(self, name: str, options: AgentOptions) -> None:
        self.node_count = 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(b"")  # to a name that the kernel chooses (unix(7))
            listener.listen(socket.SOMAXCONN)
            self.address: bytes = listener.getsockname()
            above = fcntl.fcntl(listener.fileno(), fcntl.F_DUPFD_CLOEXEC, 10)
        try:
            self.child = Child([sys.executable, "-c", START, *sys.path], fourth=above)
        finally:
            os.close(above)
        # Its stdin is also its lifeline. What it is told is for no list of processes to show, and less than a pipe holds.
        with suppress(OSError):  # it has died, which is told when it is asked
            os.write(self.child.stdin, json.dumps([name, options._asdict()]).encode() + b"\n")

    async def dies(self) -> bool:
        """Return if it has died, where it has hung up: the kernel closes what a process had before it calls it dead."""
        import asyncio  # it is loaded by now

        until = time.monotonic() + DEATH_SECONDS
        while not self.child.ended:
            if time.monotonic() > until:
                return False
            await asyncio.sleep(DEATH_POLL_SECONDS)
        return True
