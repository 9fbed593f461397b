"""Client of the keeper of standby daemons (`mpilaunch up`): a launch asks for a daemon and talks to it through the keeper.

Both sides prove that they know the secret in the keeper's record (`head.standby.record`). A daemon is handed out only for the
same node, agent, options, Python and bundle; where none fits, the launch starts its own. `mpilaunch down` ends the keeper.
"""

from __future__ import annotations

import asyncio
import binascii
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from mpilaunch.agent import AgentOptions, ChannelEvents
from mpilaunch.asyncio_timeouts import timeout
from mpilaunch.errors import LaunchError
from mpilaunch.head.standby.record import Record, read_records, remove_record
from mpilaunch.head.tasks import settle
from mpilaunch.hosts.allocation import Node
from mpilaunch.relay import RequestChannel, connect
from mpilaunch.wire.challenge import Caller

TAKE, DOWN, LIST = 1, 2, 3
"""Requests of a client: a daemon that fits the data; the end of all standby daemons; which there are."""
YES, NO = 11, 12
"""Answers of the keeper; YES to DOWN has the names of its nodes as JSON, YES to LIST what `Kept`
has. The other frames are those of `mpilaunch.relay`."""
NONCE, PROOF = 16, 17
"""The first frames, with content as in `wire.challenge`: the keeper's NONCE, the client's PROOF, the keeper's PROOF."""
REACHED_BY = ("HOME", "KUBECONFIG", "MPILAUNCH_KUBECTL")
TEMPLATE_BY = ("PATH", "PWD")
"""Variables that decide which machine a node's name means: for every agent, and for command templates in addition."""
CONFIGURED_BY = ("~/.ssh/config", "~/.kube/config")
"""Files that decide it too, besides those in KUBECONFIG."""
TAKE_PATIENCE = 5.0
"""Seconds in which the keeper must answer: a little longer than it waits for a daemon that is starting."""
MOST_CONNECTING = 16
"""Connections of a launch that have not proved themselves: the keeper cuts the oldest where too many have not."""
DOWN_PATIENCE = 15.0
"""Seconds in which the keeper must end its standby daemons."""


class KeeperConnection(RequestChannel):
    """A connection to a keeper: both sides prove themselves, then it serves one request.

    Attributes:
        pid: of the process at the other end, once connected.
        ended: done when the connection has ended.
    """

    def __init__(self, record: Record, events: ChannelEvents | None = None) -> None:
        super().__init__(events, YES, "the process that kept its daemon has gone")
        loop = asyncio.get_running_loop()
        self._socket, self.pid = record.socket, 0
        self._caller: Caller | None = Caller(record.secret)
        self._proved: asyncio.Future[bool] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    async def connect(self) -> None:
        """Connect and prove.

        Raises FileNotFoundError or ConnectionRefusedError where no keeper is there; ConnectionAbortedError where it cuts the
        connection or does not prove itself, another OSError or asyncio.TimeoutError where it does not respond.
        """
        await connect(self, self._socket)
        self.pid, user, _ = self.peer_credentials
        try:
            async with timeout(TAKE_PATIENCE):
                if user != os.geteuid() or not await self._proved:
                    raise ConnectionAbortedError("no keeper of this user, or one that is busy")
        except BaseException:
            self.transport.abort()
            raise

    def frame_received(self, kind: int, data: bytes) -> None:
        """Handle the keeper's part of the proof; later frames are the channel's."""
        if self._caller is None:
            super().frame_received(kind, data)
        elif kind == NONCE:
            self.send_frame(PROOF, self._caller.answer(data))
        elif kind == PROOF and self._caller.check(data):
            self._caller = None
            settle(self._proved, True)
        else:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        settle(self._proved, False)
        settle(self.ended, None)
        super().connection_lost(error)


def common_request(options: AgentOptions, command: Sequence[str], bundle: bytes) -> str:
    """Describe what decides how a daemon is started on any node: the agents' options, the command and the bundle."""
    files = [*map(os.path.expanduser, CONFIGURED_BY), *os.environ.get("KUBECONFIG", "").split(":")]
    surroundings = [os.environ.get(name) for name in REACHED_BY], [_state(file) for file in files]
    # These options change how the daemon is reached, but not the daemon.
    relevant = options._replace(call_back=(), connectors=None)
    return repr((relevant, list(command), binascii.crc32(bundle), surroundings))


def request_for(node: Node, common: str) -> bytes:
    """Describe the daemon of a node: daemons with equal descriptions are interchangeable."""
    reached = node.name, node.agent, node.user, node.port, node.namespace, node.container
    program = [os.environ.get(name) for name in TEMPLATE_BY] if " " in node.agent else []
    return f"{reached!r} {program!r} {common}".encode()


def _state(file: str) -> tuple[int, ...]:
    """Return values that change when a file changes."""
    try:
        status = os.stat(file)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class KeeperClient:
    """Takes daemons from the user's keeper, if there is one; after the first failure it asks no more."""

    def __init__(self, options: AgentOptions, command: Sequence[str], bundle: bytes) -> None:
        self._record = next((record for record in read_records() if os.path.exists(record.socket)), None)
        self._connecting = asyncio.Semaphore(MOST_CONNECTING)
        self._common = "" if self._record is None else common_request(options, command, bundle)

    async def take(self, node: Node, events: ChannelEvents) -> RequestChannel | None:
        """Return the channel to a standby daemon of a node, None when there is none."""
        if self._record is None:
            return None
        try:
            async with self._connecting:
                if self._record is None:
                    return None  # it did not respond to those before
                channel = KeeperConnection(self._record, events)
                await channel.connect()
            async with timeout(TAKE_PATIENCE):
                answer, _ = await channel.request(TAKE, request_for(node, self._common))
        except ConnectionAbortedError:
            return None  # this connection was cut: the next node may have another
        except (OSError, asyncio.TimeoutError):
            self._record = None
            return None
        return channel if answer == YES else None


class Kept(NamedTuple):
    """What a keeper keeps.

    Attributes:
        pid: of the keeper.
        idle, busy: the names of the nodes whose daemon waits for a launch, and of those whose daemon serves one.
        idle_seconds: until it ends without a launch, from the last one on.
    """

    pid: int
    idle: list[str]
    busy: list[str]
    idle_seconds: float


def kept() -> list[Kept]:
    """Return what this user's keepers keep; one that does not answer is left out."""
    found = []
    for record in read_records():
        with suppress(OSError, asyncio.TimeoutError, ValueError, TypeError):
            found.append(asyncio.run(_kept(record)))
    return found


async def _kept(record: Record) -> Kept:
    connection = KeeperConnection(record)
    await connection.connect()
    async with timeout(TAKE_PATIENCE):
        _, data = await connection.request(LIST, b"")
    connection.abort()
    idle, busy, idle_seconds = json.loads(data)
    return Kept(connection.pid, list(map(str, idle)), list(map(str, busy)), float(idle_seconds))


def take_down() -> list[str] | None:
    """End all standby daemons, and their keeper unless it serves a launch; return its nodes' names, None without a keeper.

    Raises LaunchError when a keeper does not answer.
    """
    ended = [names for record in read_records() if (names := asyncio.run(_take_down(record))) is not None]
    return [name for names in ended for name in names] if ended else None


async def _take_down(record: Record) -> list[str] | None:
    connection = KeeperConnection(record)
    try:
        await connection.connect()
        answering = asyncio.ensure_future(connection.request(DOWN, b""))
        async with timeout(DOWN_PATIENCE):
            await connection.ended
    except (FileNotFoundError, ConnectionRefusedError):
        remove_record(record)  # its keeper was killed
        return None
    except (OSError, asyncio.TimeoutError):
        keeper = f"process {connection.pid}" if connection.pid else f"the process at {record.socket}"
        hint = f"end it: kill -9 {connection.pid or '$(fuser ' + record.socket + ')'}; its daemons go too"
        raise LaunchError("standby-failed", f"{keeper}, which keeps the daemons, does not answer", hint=hint) from None
    answer, names = await answering
    return [str(name) for name in json.loads(names)] if answer == YES else None
