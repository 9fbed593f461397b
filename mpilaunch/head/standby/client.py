"""Client of the keeper of standby daemons (`mpilaunch up`): a launch asks for a daemon and talks to it through the keeper.

The keeper's socket and the secret by which both sides prove themselves are in a record that only the user can read
(`head.standby.record`). A daemon is handed out only for the same node, agent, options, Python and bundle; where none fits, the
launch starts its own. Each connection serves one daemon and ends with it.
"""

from __future__ import annotations

import asyncio
import binascii
import json
import os
from collections.abc import Sequence

from mpilaunch.agent import AgentOptions, ChannelEvents
from mpilaunch.errors import LaunchError
from mpilaunch.head.standby.record import Record, read_records, remove_record
from mpilaunch.head.tasks import settle
from mpilaunch.hosts.allocation import Node
from mpilaunch.relay import FrameProtocol, RequestChannel
from mpilaunch.wire.challenge import Caller

TAKE, DOWN = 1, 2
"""Requests of a client: a daemon that fits the data; the end of all standby daemons."""
YES, NO = 11, 12
"""Answers of the keeper; YES to DOWN has the names of its nodes as JSON. The other frames are those of `mpilaunch.relay`."""
NONCE, PROOF = 16, 17
"""The first frames, with content as in `wire.challenge`: the keeper's NONCE, the client's PROOF, the keeper's PROOF."""
REACHED_BY = ("HOME", "KUBECONFIG", "MPILAUNCH_KUBECTL")
TEMPLATE_BY = ("PATH", "PWD")
"""Variables that decide which machine a node's name means: for every agent, and for command templates in addition."""
CONFIGURED_BY = ("~/.ssh/config", "~/.kube/config")
"""Files that decide it too, besides those in KUBECONFIG."""
TAKE_PATIENCE = 5.0
"""Seconds in which the keeper must answer: a little longer than it waits for a daemon that is starting."""
DOWN_PATIENCE = 15.0
"""Seconds in which the keeper must end its standby daemons."""


class _Proving(FrameProtocol):
    """A client's connection: the client proves itself first, and continues only with a keeper that has done so too.

    Attributes:
        proved: the result is True when both sides have proved themselves, False when the connection ended before.
    """

    def prove_with(self, secret: bytes) -> None:
        """Set the secret to prove."""
        self._caller: Caller | None = Caller(secret)
        self.proved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def frame_received(self, kind: int, data: bytes) -> None:
        """Handle the keeper's part of the proof; later frames go to the next class."""
        if self._caller is None:
            super().frame_received(kind, data)
        elif kind == NONCE:
            self.send_frame(PROOF, self._caller.answer(data))
        elif kind == PROOF and self._caller.check(data):
            self._caller = None
            settle(self.proved, True)
        else:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Settle `proved` for those that await it."""
        settle(self.proved, False)
        super().connection_lost(error)


class _DaemonChannel(_Proving, RequestChannel):
    """The channel to a standby daemon."""


async def _connect(channel: _Proving, record: Record) -> None:
    """Connect to the keeper; raises OSError or asyncio.TimeoutError when there is none, or it does not prove itself."""
    channel.prove_with(record.secret)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, record.socket)
    _, user, _ = channel.peer_credentials
    if user != os.geteuid() or not await asyncio.wait_for(channel.proved, TAKE_PATIENCE):
        channel.transport.abort()
        raise ConnectionRefusedError("another process than this user's keeper answers")


class Requests:
    """Describe daemons by everything that decides how they are started: equal requests mean interchangeable daemons.

    Args:
        options: the options of all agents.
        command: the command that starts a daemon.
        bundle: the bundle sent to it.
    """

    def __init__(self, options: AgentOptions, command: Sequence[str], bundle: bytes) -> None:
        files = [*map(os.path.expanduser, CONFIGURED_BY), *os.environ.get("KUBECONFIG", "").split(":")]
        surroundings = [os.environ.get(name) for name in REACHED_BY], [_state(file) for file in files]
        # These options change how the daemon is reached, but not the daemon.
        relevant = options._replace(call_back=(), connectors=None)
        self._common = repr((relevant, list(command), binascii.crc32(bundle), surroundings))

    def of(self, node: Node) -> bytes:
        """Return the request for a node's daemon."""
        reached = node.name, node.agent, node.user, node.port, node.namespace, node.container
        program = [os.environ.get(name) for name in TEMPLATE_BY] if " " in node.agent else []
        return f"{reached!r} {program!r} {self._common}".encode()


def _state(file: str) -> tuple[int, ...]:
    """Return values that change when a file changes."""
    try:
        status = os.stat(file)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class KeeperClient:
    """Takes daemons from the keeper; after the first failure it asks no more."""

    def __init__(self, record: Record, requests: Requests) -> None:
        self._record, self._requests = record, requests
        self._lost = False

    @classmethod
    def find(cls, options: AgentOptions, command: Sequence[str], bundle: bytes) -> KeeperClient | None:
        """Return a client of the user's keeper, None when there is none; the arguments are those of Requests."""
        for record in read_records():
            if os.path.exists(record.socket):
                return cls(record, Requests(options, command, bundle))
        return None

    async def take(self, node: Node, events: ChannelEvents) -> RequestChannel | None:
        """Return the channel to a standby daemon of a node, None when there is none."""
        if self._lost:
            return None
        try:
            channel = _DaemonChannel(events, YES, "the process that kept its daemon has gone")
            await _connect(channel, self._record)
            answer, _ = await asyncio.wait_for(channel.request(TAKE, self._requests.of(node)), TAKE_PATIENCE)
        except (OSError, asyncio.TimeoutError):
            self._lost = True
            return None
        return channel if answer == YES else None


class _Shutdown(_Proving):
    """A connection that asks the keeper to end.

    Attributes:
        granted: the keeper has answered YES.
        names: the names of the keeper's nodes.
        ended: set when the connection has ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.granted = False
        self.names: list[str] = []
        self.ended = asyncio.Event()

    def frame_received(self, kind: int, data: bytes) -> None:
        """Handle the proof, then the answer."""
        if self.proved.done():
            self.granted = kind == YES
            if self.granted and data:
                self.names = [str(name) for name in json.loads(data)]
        else:
            super().frame_received(kind, data)

    def connection_lost(self, error: Exception | None) -> None:
        """Set `ended`."""
        super().connection_lost(error)
        self.ended.set()


def take_down() -> list[str] | None:
    """End all standby daemons, and their keeper unless it serves a launch; return its nodes' names, None without a keeper.

    Raises LaunchError when a keeper does not answer.
    """
    ended = [asyncio.run(_take_down(record)) for record in read_records()]
    of_keepers = [names for names in ended if names is not None]
    return [name for names in of_keepers for name in names] if of_keepers else None


async def _take_down(record: Record) -> list[str] | None:
    connection = _Shutdown()
    try:
        await _connect(connection, record)
        connection.send_frame(DOWN)
        await asyncio.wait_for(connection.ended.wait(), DOWN_PATIENCE)
    except asyncio.TimeoutError:
        pid = connection.peer_credentials[0]
        message = f"process {pid}, which keeps the daemons, does not answer"
        raise LaunchError("standby-failed", message, hint=f"end it: kill -9 {pid}; its daemons go too") from None
    except OSError:
        remove_record(record)  # its keeper was killed
        return None
    return connection.names if connection.granted else None
