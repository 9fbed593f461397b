"""A connector: a process that opens channels by an agent and relays them to the head. See `connectors`.

The head hands it one end of a new pair of sockets for each node, over the pair that it was started with. None of them has a
name, so no other process can connect: not of another user, and not of another container with this network.
"""

from __future__ import annotations

import asyncio
import errno
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
FULL = (errno.EAGAIN, errno.ETOOMANYREFS)
FULL_POLL_SECONDS = 0.01
"""A connector that starts or is busy takes the ends later; the kernel limits how many wait."""


class ConnectorLost(Exception):
    """A connector did not answer."""


async def connect(control: socket.socket, node: Node, command: Sequence[str], events: ChannelEvents) -> Channel:
    """Have the connector at the other end of `control` open a channel; raises AgentFailure and ConnectorLost."""
    channel = RequestChannel(events, OPENED, "the process that made its connection has died")
    try:
        ours, theirs = socket.socketpair()
    except OSError as error:
        raise ConnectorLost(str(error)) from error
    try:
        with theirs:
            await _hand_over(control, theirs)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
        # Agents do not use the slots of a node.
        kind, answer = await channel.request(OPEN, json.dumps([node._replace(slots=())._asdict(), list(command)]).encode())
    except OSError as error:
        ours.close()
        raise ConnectorLost(str(error)) from error
    except asyncio.CancelledError:
        ours.close()
        raise
    if kind == FAILED:
        raise AgentFailure(*json.loads(answer))
    if kind != OPENED:
        raise ConnectorLost("it closed the connection")
    return channel


async def _hand_over(control: socket.socket, end: socket.socket) -> None:
    while True:
        try:
            socket.send_fds(control, [b"\0"], [end.fileno()])
            return
        except OSError as error:
            if error.errno not in FULL:
                raise
        await asyncio.sleep(FULL_POLL_SECONDS)


def main() -> None:
    """Serve until stdin ends; its first line is the agent's name and options, and descriptor 3 is the socket of the head."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        name, options = json.loads(stdin.readline())
    options = {setting: tuple(value) if isinstance(value, list) else value for setting, value in options.items()}
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(load(name, AgentOptions(**options)), socket.socket(fileno=3)))


async def _serve(agent: Agent, control: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    stdin_ended = asyncio.Event()
    beginning: set[asyncio.Task[object]] = set()

    def accept() -> None:
        with suppress(BlockingIOError):
            data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not data:
                loop.remove_reader(control)  # the head has gone, and stdin ends too
            for descriptor in descriptors:  # none if this process has too many open: the head reads end of file
                os.set_inheritable(descriptor, False)
                connection = socket.socket(fileno=descriptor)
                task = loop.create_task(loop.connect_accepted_socket(lambda: _Relay(agent), connection))
                beginning.add(task)
                task.add_done_callback(beginning.discard)

    control.setblocking(False)
    loop.add_reader(0, stdin_ended.set)
    loop.add_reader(control, accept)
    await stdin_ended.wait()
    loop.remove_reader(0)
    loop.remove_reader(control)
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(agent.close(), CLOSE_SECONDS)


class _Relay(FrameProtocol):
    """The head's connection for one node."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self._agent = agent
        self._channel: Channel | None = None
        self._opening: asyncio.Task[None] | None = None
        self._answered = False

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

    def pause_writing(self) -> None:
        """Let the node wait until the head has read more."""
        if self._channel is not None:
            self._channel.pause_reading()

    def resume_writing(self) -> None:
        if self._channel is not None:
            self._channel.resume_reading()

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
