"""A connector: a process that opens channels by an agent and relays them to the head. See `connectors`.

The head's `connectors` start it by the name of this module, which no other module imports.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
from contextlib import suppress
from typing import Any

from mpilaunch.agent import Agent, AgentFailure, AgentOptions, Channel, ChannelEnd
from mpilaunch.asyncio_timeouts import wait_at_most
from mpilaunch.relay import STDERR, STDIN, STDOUT, FrameProtocol
from mpilaunch_agents.registry import load
from mpilaunch_agents.ssh.connector import FAILED, OPENED, SentNode

CLOSE_SECONDS = 1.0
"""Time that the agent has to close after the head has gone."""


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
    await wait_at_most(CLOSE_SECONDS, agent.close())


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

    async def _open(self, node: list[Any], command: list[str]) -> None:
        try:
            self._channel = await self._agent.open(SentNode(*node), command, _EventRelay(self))
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
