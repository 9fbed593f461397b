"""Around an agent that makes its connections itself: several processes make them, for more nodes than one core serves.

A connector is forked before any connection is made. It knows nothing of jobs and hands bytes on; the head connects to it once
for each node, by a socket that takes nobody else. It goes with the head. Should it die alone, what it had connected is lost, as
by any other accident, and the others are asked from then on.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from mpilaunch.agent import Agent, AgentFailure, Channel, ChannelEvents
from mpilaunch.allocation import Node

PARTING = 5.0
"""Seconds that a connector has to go."""
PARTING_STEP = 0.002


class ConnectorsAgent:
    """Reaches nodes as the other agent does, by turns through each connector.

    Args:
        agent: the other agent, unused so far: each connector has a copy of its own.
        count: of the connectors.
    """

    def __init__(self, agent: Agent, count: int) -> None:
        self._connectors = [_Connector(agent) for _ in range(count)]

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> Channel:
        """Have the command started; raises AgentFailure."""
        from mpilaunch_agents.connector import ConnectorLost, connect  # asyncio is loaded by now

        while self._connectors:
            connector = min(self._connectors, key=lambda one: one.given)
            connector.given += 1
            try:
                return await connect(connector.address, node, command, events)
            except ConnectorLost:
                if connector in self._connectors:
                    self._connectors.remove(connector)
                    connector.end()
        raise AgentFailure("agent-failed", "the processes that make the connections have died")

    async def close(self) -> None:
        """Let the connectors go, with all that they have opened."""
        for connector in self._connectors:
            connector.release()
        for connector in self._connectors:
            connector.end()
        self._connectors.clear()


class _Connector:
    """A connector, as the head sees it.

    Attributes:
        address: of its socket.
        given: nodes that it was asked for.
    """

    def __init__(self, agent: Agent) -> None:
        self.given = 0
        lifeline, self._ours = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(b"")  # to a name that the kernel chooses (unix(7))
            listener.listen(socket.SOMAXCONN)
            self.address: bytes = listener.getsockname()
            head = os.getpid()
            self._pid = os.fork()
            if self._pid == 0:
                from mpilaunch_agents.connector import be_connector

                be_connector(agent, listener, lifeline, head)
        os.close(lifeline)

    def release(self) -> None:
        """Let it go."""
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1

    def end(self) -> None:
        """See that it has gone."""
        self.release()
        until = time.monotonic() + PARTING
        with suppress(ChildProcessError):
            while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > until:
                    os.kill(self._pid, signal.SIGKILL)
                time.sleep(PARTING_STEP)
