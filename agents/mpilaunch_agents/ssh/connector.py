"""A connector: a process that opens channels by an agent, and hands on what is said by them. See `connectors`."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from mpilaunch.agent import Agent, AgentFailure, AgentOptions, Channel, ChannelEnd, ChannelEvents, load
from mpilaunch.hosts.allocation import Node
from mpilaunch.relay import STDERR, STDIN, STDOUT, FrameProtocol, RequestChannel

OPEN = 17
"""What the head asks for: a node's channel, as JSON."""
OPENED, FAILED = 18, 19
"""What it is told; the data of FAILED are the cause and the words of an AgentFailure, as JSON. All else is as in `relayed`."""
LEAVING = 1.0
"""Seconds that the agent has to close, when the head has gone."""


class ConnectorLost(Exception):
    """A connector has not answered."""


async def connect(address: bytes, node: Node, command: Sequence[str], events: ChannelEvents) -> Channel:
    """Return a channel that a connector has opened; raises AgentFailure and ConnectorLost."""
    channel = RequestChannel(events, OPENED, "the process that made its connection has died")
    loop = asyncio.get_running_loop()
    try:
        await loop.create_unix_connection(lambda: channel, address)  # type: ignore[arg-type]  # a name may be bytes
        # The name is free for anybody once a connector has died.
        if channel.peer_credentials[1] != os.geteuid():
            channel.abort()
            raise ConnectorLost("somebody else answers")
        # The agents need to know how a node is reached, and nothing of its slots.
        kind, answer = await channel.request(OPEN, json.dumps([{**vars(node), "slots": ()}, list(command)]).encode())
    except OSError as error:
        raise ConnectorLost(str(error)) from error
    if kind == FAILED:
        raise AgentFailure(*json.loads(answer))
    if kind != OPENED:
        raise ConnectorLost("it has hung up")
    return channel


def main() -> NoReturn:
    """Serve until stdin ends, of which the first line says by which agent; descriptor 3 is where the head connects."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with open(0, "rb", buffering=0, closefd=False) as told:
        name, options = json.loads(told.readline())
    options = {setting: tuple(value) if isinstance(value, list) else value for setting, value in options.items()}
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(load(name, AgentOptions(**options)), socket.socket(fileno=3)))
    os._exit(0)


async def _serve(agent: Agent, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(0, gone.set)
    head = os.getppid()
    server = await loop.create_unix_server(lambda: _Relay(agent, head), sock=listener, backlog=socket.SOMAXCONN)
    await gone.wait()
    loop.remove_reader(0)
    server.close()
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(agent.close(), LEAVING)
    os._exit(0)  # and wait for no thread that still asks a name server


class _Relay(FrameProtocol):
    """The head's connection for one node."""

    def __init__(self, agent: Agent, head: int) -> None:
        super().__init__()
        self._agent, self._head = agent, head
        self._channel: Channel | None = None
        self._opening: asyncio.Task[None] | None = None
        self._told = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take it, if it is the head's."""
        super().connection_made(transport)
        if self.peer_credentials[0] != self._head:
            self.transport.abort()

    def frame_received(self, kind: int, data: bytes) -> None:
        """Take the request; after that, all is for the daemon."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open(*json.loads(data)))
        elif self._channel is not None and kind == STDIN:
            if data:
                self._channel.write(data)
            else:
                self._channel.write_eof()

    async def _open(self, node: dict[str, object], command: list[str]) -> None:
        try:
            self._channel = await self._agent.open(Node(**node), command, _Heard(self))  # type: ignore[arg-type]
        except Exception as error:
            failure = error if isinstance(error, AgentFailure) else AgentFailure("agent-failed", repr(error))
            self.send_frame(FAILED, json.dumps([failure.cause, failure.detail]).encode())
            self.transport.close()
        else:
            self.opened()

    def opened(self) -> None:
        """Tell the head once that the channel is open, before anything else."""
        if not self._told:
            self._told = True
            self.send_frame(OPENED)

    def connection_lost(self, error: Exception | None) -> None:
        """The head wants it no more."""
        if self._channel is not None:
            self._channel.abort()
        elif self._opening is not None:
            self._opening.cancel()


class _Heard:
    """What the agent tells of a channel, for the head."""

    def __init__(self, relay: _Relay) -> None:
        self._relay = relay

    def data_received(self, data: bytes) -> None:
        """Hand on bytes of stdout."""
        self._tell(STDOUT, data)

    def stderr_received(self, data: bytes) -> None:
        """Hand on bytes of stderr."""
        self._tell(STDERR, data)

    def closed(self, end: ChannelEnd) -> None:
        """Tell the end."""
        self._relay.opened()
        self._relay.send_end(end)

    def pause_writing(self) -> None:
        """Let the head wait."""
        self._relay.transport.pause_reading()

    def resume_writing(self) -> None:
        """Let it go on."""
        self._relay.transport.resume_reading()

    def _tell(self, kind: int, data: bytes) -> None:
        self._relay.opened()
        self._relay.send_frame(kind, data)
