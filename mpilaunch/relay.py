"""A daemon's channel over a socket, for agents whose own command cannot carry the daemon's stdin and stdout.

Both sides send frames: kind (1 byte), size (4 bytes, big-endian), data. The channel ends with the connection.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct

from mpilaunch.agent import CAUSES, ChannelEnd, ChannelEvents

HEADER = struct.Struct(">BI")
_PEER = struct.Struct("3i")
MAX_DATA = 1 << 30
"""Maximum bytes of data in a frame; a larger frame ends the connection."""
STDIN = 3
"""From the head: bytes for the daemon's stdin; an empty frame closes it."""
STDOUT, STDERR, CLOSED = 13, 14, 15
"""To the head: output, and the end of the channel as the JSON of a ChannelEnd."""


async def connect(protocol: FrameProtocol, path: str) -> None:
    """Connect to a Unix socket; raises OSError, BlockingIOError where its queue is full, which asyncio takes for connected."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setblocking(False)
        connection.connect(path)
        await asyncio.get_running_loop().create_unix_connection(lambda: protocol, sock=connection)
    except BaseException:
        connection.close()
        raise


class FrameProtocol(asyncio.Protocol):
    """One side of a connection; subclasses handle the frames. `max_data` is the bytes of data that a frame may have now."""

    transport: asyncio.Transport
    max_data = MAX_DATA

    def __init__(self) -> None:
        self._buffer = bytearray()

    def frame_received(self, kind: int, data: bytes) -> None:
        raise NotImplementedError

    def send_frame(self, kind: int, data: bytes = b"") -> None:
        self.transport.write(HEADER.pack(kind, len(data)) + data)

    def send_end(self, end: ChannelEnd) -> None:
        """Send how the daemon's channel ended, as the last frame; the head closes the connection once it has read it.

        Until then, incoming data is read and ignored. Closing the connection now would reset it if the head sends anything
        more, and the head would lose the frames it has not read yet.
        """
        self.send_frame(CLOSED, json.dumps([end.exit_code, end.error, end.cause]).encode())
        self.transport.write_eof()
        self.transport.resume_reading()

    @property
    def peer_credentials(self) -> tuple[int, int, int]:
        """Process, user and group at the other end of a Unix socket (unix(7), SO_PEERCRED)."""
        connection = self.transport.get_extra_info("socket")
        process, user, group = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        return process, user, group

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Handle every complete frame; a frame that is too large ends the connection."""
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            kind, size = HEADER.unpack_from(self._buffer)
            end = HEADER.size + size
            if size > self.max_data:
                self._buffer.clear()
                self.transport.abort()
                return
            if len(self._buffer) < end:
                return
            content = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            self.frame_received(kind, content)


class RelayedChannel(FrameProtocol):
    """The head's side of the connection, which is an agent's channel.

    Args:
        events: receives the daemon's output; None while there is no daemon yet.
        lost: the error to report when the connection ends without a CLOSED frame.
    """

    def __init__(self, events: ChannelEvents | None, lost: str) -> None:
        super().__init__()
        self.events = events
        self._end = ChannelEnd(None, lost)
        self._eof_sent = False

    def write(self, data: bytes) -> None:
        """Send bytes to the daemon's stdin; after `write_eof` they are dropped."""
        if data and not self._eof_sent:
            self.send_frame(STDIN, data)

    def write_eof(self) -> None:
        self._eof_sent = True
        self.send_frame(STDIN)

    def pause_reading(self) -> None:
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self.transport.resume_reading()

    def abort(self) -> None:
        """Cut the connection; the other side then ends the daemon."""
        self.transport.abort()

    def frame_received(self, kind: int, data: bytes) -> None:
        """Pass on output; store the end until the connection is closed, or cut the connection if it is malformed."""
        if self.events is None:
            return
        if kind == STDOUT:
            self.events.data_received(data)
        elif kind == STDERR:
            self.events.stderr_received(data)
        elif kind == CLOSED:
            try:
                self._end = _end_of(data)
            except (ValueError, RecursionError):
                self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self.events is not None:
            self.events.closed(self._end)

    def pause_writing(self) -> None:
        if self.events is not None:
            self.events.pause_writing()

    def resume_writing(self) -> None:
        if self.events is not None:
            self.events.resume_writing()


def _end_of(data: bytes) -> ChannelEnd:
    """Return the end that a CLOSED frame reports; raises ValueError, RecursionError for the frame of a hostile node."""
    match json.loads(data):
        case [int() | None as code, str() as error, str() as cause] if cause in CAUSES or not cause:
            return ChannelEnd(code, error, cause)
    raise ValueError("not the end of a channel")


class RequestChannel(RelayedChannel):
    """A channel that first requests its daemon, and reports no event until the request is granted.

    Args:
        granted: the kind of the answer that grants the daemon; all frames after it are the daemon's.
    """

    def __init__(self, events: ChannelEvents | None, granted: int, lost: str) -> None:
        super().__init__(None, lost)
        self._granted_events, self._granted = events, granted
        self._answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    async def request(self, kind: int, data: bytes) -> tuple[int, bytes]:
        """Send a request; return the answer's kind and data, or (0, b"") when the connection ended without one."""
        self.send_frame(kind, data)
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.abort()
            raise

    def frame_received(self, kind: int, data: bytes) -> None:
        """Store the answer; pass on what the daemon sends after it."""
        if self._answer.done():
            super().frame_received(kind, data)
        else:
            self.events = self._granted_events if kind == self._granted else None
            self._answer.set_result((kind, data))

    def connection_lost(self, error: Exception | None) -> None:
        """Answer the request when it is still open, or report the end."""
        if not self._answer.done():
            self._answer.set_result((0, b""))
        super().connection_lost(error)
