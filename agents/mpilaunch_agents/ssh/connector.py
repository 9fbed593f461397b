"""A connector: a process that opens channels by an agent and relays them to the head. See `connectors`."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
from collections.abc import Sequence
from contextlib import suppress

from mpilaunch.agent import Agent, AgentFailure, AgentOptions, Channel, ChannelEnd, ChannelEvents, load
from mpilaunch.hosts.allocation import Node
from mpilaunch.relay import STDERR, STDIN, STDOUT, FrameProtocol, RequestChannel

OPEN = 17
"""The head's request for a channel: node and command as JSON."""
OPENED, FAILED = 18, 19
"""The answers; FAILED carries cause and detail of an AgentFailure as JSON. All other frames are those of `mpilaunch.relay`."""
CLOSE_SECONDS = 1.0
"""Time that the agent has to close after the head has gone."""


class ConnectorLost(Exception):
    """A connector did not answer."""


async def connect(address: bytes, node: Node, command: Sequence[str], events: ChannelEvents) -> Channel:
    """Have a connector open a channel, and return it; raises AgentFailure and ConnectorLost."""
    channel = RequestChannel(events, OPENED, "the process that made its connection has died")
    loop = asyncio.get_running_loop()
    try:
        await loop.create_unix_connection(lambda: channel, address)  # type: ignore[arg-type]  # a name may be bytes
        # After a connector's death, any process may bind its name.
        if channel.peer_credentials[1] != os.geteuid():
            channel.abort()
            raise ConnectorLost("another user's process answers")
        # Agents do not use the slots of a node.
        kind, answer = await channel.request(OPEN, json.dumps([node._replace(slots=())._asdict(), list(command)]).encode())
    except OSError as error:
        raise ConnectorLost(str(error)) from error
    if kind == FAILED:
        raise AgentFailure(*json.loads(answer))
    if kind != OPENED:
        raise ConnectorLost("it closed the connection")
    return channel


def main() -> None:
    """Serve until stdin ends; its first line is the agent's name and options, and the head connects to descriptor 3."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        name, options = json.loads(stdin.readline())
    options = {setting: tuple(value) if isinstance(value, list) else value for setting, value in options.items()}
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(load(name, AgentOptions(**options)), socket.socket(fileno=3)))


async def _serve(agent: Agent, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    stdin_ended = asyncio.Event()
    loop.add_reader(0, stdin_ended.set)
    head = os.getppid()
    server = await loop.create_unix_server(lambda: _Relay(agent, head), sock=listener, backlog=socket.SOMAXCONN)
    await stdin_ended.wait()
    loop.remove_reader(0)
    server.close()
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(agent.close(), CLOSE_SECONDS)


class _Relay(FrameProtocol):
    """The head's connection for one node."""

    def __init__(self, agent: Agent, head: int) -> None:
        super().__init__()
        self._agent, self._head = agent, head
        self._channel: Channel | None = None
        self._opening: asyncio.Task[None] | None = None
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept only the head."""
        super().connection_made(transport)
        if self.peer_credentials[0] != self._head:
            self.transport.abort()

    def frame_received(self, kind: int, data: bytes) -> None:
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open(*json.loads(data)))
        elif self._channel is not None and kind == STDIN:
            if data:
                self._channel.write(data)
            else:
                self._channel.write_eof()

    async def _open(self, node: dict[str, object], command: list[str]) -> None:
        try:
            self._channel = await self._agent.open(Node(**node), command, _EventRelay(self))  # type: ignore[arg-type]
        except Exception as error:
            failure = error if isinstance(error, AgentFailure) else AgentFailure("agent-failed", repr(error))
            self.send_frame(FAILED, json.dumps([failure.cause, failure.detail]).encode())
            self.transport.close()
        else:
            self.opened()

    def opened(self) -> None:
        """Answer that the channel is open, once and before any other frame."""
        if not self._answered:
            self._answered = True
            self.send_frame(OPENED)

    def connection_lost(self, error: Exception | None) -> None:
        """End the channel or the attempt to open it."""
        if self._channel is not None:
            self._channel.abort()
        elif self._opening is not None:
            self._opening.cancel()


class _EventRelay:
    """Sends the events of a channel to the head."""

    def __init__(self, relay: _Relay) -> None:
        self._relay = relay

    def data_received(self, data: bytes) -> None:
        self._send(STDOUT, data)

    def stderr_received(self, data: bytes) -> None:
        self._send(STDERR, data)

    def closed(self, end: ChannelEnd) -> None:
        self._relay.opened()
        self._relay.send_end(end)

    def pause_writing(self) -> None:
        self._relay.transport.pause_reading()

    def resume_writing(self) -> None:
        self._relay.transport.resume_reading()

    def _send(self, kind: int, data: bytes) -> None:
        self._relay.opened()
        self._relay.send_frame(kind, data)
