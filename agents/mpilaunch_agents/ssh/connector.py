"""The head's side of a connector: has it open a channel to a node. See `connectors`; `connector_process` is the other side.

The head hands it one end of a new pair of sockets for each node, over the pair that it was started with. None of them has a
name, so no other process can connect: not of another user, and not of another container with this network.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import Sequence
from typing import NamedTuple

from mpilaunch.agent import AgentFailure, Channel, ChannelEvents, Node
from mpilaunch.relay import RequestChannel

OPEN = 17
"""The head's request for a channel: node and command as JSON."""
OPENED, FAILED = 18, 19
"""The answers; FAILED carries cause and detail of an AgentFailure as JSON. All other frames are those of `mpilaunch.relay`."""
FULL = (errno.EAGAIN, errno.ETOOMANYREFS)
FULL_POLL_SECONDS = 0.01
"""A connector that starts or is busy takes the ends later; the kernel limits how many wait."""


class SentNode(NamedTuple):
    """A `Node` of `mpilaunch.agent`, as the head sends it to a connector."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nothing calls
    name: str
    user: str | None
    port: int | None
    namespace: str | None
    container: str | None


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
        sent = SentNode(node.index, node.name, node.user, node.port, node.namespace, node.container)
        kind, answer = await channel.request(OPEN, json.dumps([sent, list(command)]).encode())
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
