"""Daemons that stand by on the nodes for launches to come (`mpilaunch --up`), as a launch sees them: ask for one, talk with it.

They are kept by a process of the user's, `head.keeper`, at a socket in a directory that is the user's alone. A daemon is handed
out only for the very same node, agent, options, python and bundle; where there is none, the launch starts one as ever. One
connection is one daemon, and ends with it. Both sides speak in frames: kind (1 byte), size (4 bytes, big-endian), data.
"""

from __future__ import annotations

import asyncio
import binascii
import json
import os
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress

from mpilaunch.agent import AgentOptions, ChannelEnd, ChannelEvents
from mpilaunch.allocation import Node

HEADER = struct.Struct(">BI")
TAKE, DOWN, STDIN = 1, 2, 3
"""What a launch says: give me the daemon that the data stands for; end all that stands by; this is stdin, empty for its end."""
YES, NO, STDOUT, STDERR, CLOSED = 11, 12, 13, 14, 15
"""What the keeper says: the answer; what the daemon says; and how its channel ended, a ChannelEnd as JSON."""
REACHED_BY = ("HOME", "KUBECONFIG")
"""Variables that decide where a node's name leads."""


def socket_path(make: bool = False) -> str:
    """Return where the keeper listens; raises OSError when there is no such place, or not for the user alone.

    Args:
        make: make the directory.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    has_own = os.path.isabs(base) and os.path.isdir(base)
    folder = os.path.join(base, "mpilaunch") if has_own else f"/tmp/mpilaunch-{os.geteuid()}"
    if make:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a directory of this user's alone")
    return os.path.join(folder, "standby")


def request_for(node: Node, options: AgentOptions, command: Sequence[str], bundle: bytes) -> str:
    """Return what stands for a daemon: two are the same when nothing that they were started by differs."""
    reached = node.name, node.agent, node.user, node.port, node.namespace, node.container, options
    return repr((reached, command, binascii.crc32(bundle), [os.environ.get(name) for name in REACHED_BY]))


class Standby:
    """The way to the keeper, where there is one.

    Args:
        options: what the user says to every agent.
    """

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._path = ""
        with suppress(OSError):
            path = socket_path()
            self._path = path if os.path.exists(path) else ""

    async def take(self, node: Node, command: Sequence[str], bundle: bytes, events: ChannelEvents) -> StandbyChannel | None:
        """Return the channel to a daemon that stands by on a node, None when there is none."""
        if not self._path:
            return None
        try:
            _, channel = await asyncio.get_running_loop().create_unix_connection(lambda: StandbyChannel(events), self._path)
        except OSError:
            self._path = ""
            return None
        return channel if await channel.ask(TAKE, request_for(node, self._options, command, bundle)) else None


class Frames(asyncio.Protocol):
    """One side of a connection; what it does with a frame is said by the side."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._buffer = bytearray()

    def frame(self, kind: int, data: bytes) -> None:
        """Take a frame."""
        raise NotImplementedError

    def tell(self, kind: int, data: bytes = b"") -> None:
        """Send a frame."""
        self.transport.write(HEADER.pack(kind, len(data)) + data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Take what has come whole."""
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            kind, size = HEADER.unpack_from(self._buffer)
            end = HEADER.size + size
            if len(self._buffer) < end:
                return
            content = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            self.frame(kind, content)


class StandbyChannel(Frames):
    """A daemon that has been handed out, as an agent's channel."""

    def __init__(self, events: ChannelEvents) -> None:
        super().__init__()
        self._events = events
        self._answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._taken = False
        self._end = ChannelEnd(None, "the process that kept its daemon has gone")

    async def ask(self, what: int, request: str = "") -> bool:
        """Ask the keeper; return its answer."""
        self.tell(what, request.encode())
        self._taken = await self._answer
        return self._taken

    # The channel

    def write(self, data: bytes) -> None:
        """Send bytes to the daemon's stdin."""
        if data:
            self.tell(STDIN, data)

    def write_eof(self) -> None:
        """Close the daemon's stdin."""
        self.tell(STDIN)

    def abort(self) -> None:
        """Let the keeper cut the daemon's channel."""
        self.transport.abort()

    # The connection

    def frame(self, kind: int, data: bytes) -> None:
        """Hand on what the keeper says."""
        if kind == STDOUT:
            self._events.data_received(data)
        elif kind == STDERR:
            self._events.stderr_received(data)
        elif kind == CLOSED:
            self._end = ChannelEnd(*json.loads(data))
        elif not self._answer.done():
            self._answer.set_result(kind == YES)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the end."""
        if not self._answer.done():
            self._answer.set_result(False)
        elif self._taken:
            self._events.closed(self._end)

    def pause_writing(self) -> None:
        """The socket is full."""
        self._events.pause_writing()

    def resume_writing(self) -> None:
        """It takes data again."""
        self._events.resume_writing()


class _Farewell:
    """The events of a connection that only waits for its end."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None: ...

    def stderr_received(self, data: bytes) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def closed(self, end: ChannelEnd) -> None:
        self.ended.set()


def take_down() -> bool:
    """End all that stands by, and return when it has gone, and the keeper if it serves no launch; False when there was none."""

    async def ask() -> bool:
        loop, farewell = asyncio.get_running_loop(), _Farewell()
        try:
            path = socket_path()
            _, channel = await loop.create_unix_connection(lambda: StandbyChannel(farewell), path)
        except ConnectionRefusedError:
            os.unlink(path)  # its keeper was killed
            return False
        except OSError:
            return False
        taken = await channel.ask(DOWN)
        if taken:
            await farewell.ended.wait()
        return taken

    return asyncio.run(ask())
