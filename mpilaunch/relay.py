"""A daemon's channel over a connection, where it cannot be the stdin and stdout of an agent's own command.

Both sides speak in frames: kind (1 byte), size (4 bytes, big-endian), data. With the connection the channel ends.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct

from mpilaunch.agent import ChannelEnd, ChannelEvents

HEADER = struct.Struct(">BI")
_PEER = struct.Struct("3i")
MAX_DATA = 1 << 30
"""Bytes of data that a frame may have; another ends the connection."""
STDIN = 3
"""What the head says: bytes of stdin, none for its end."""
STDOUT, STDERR, CLOSED = 13, 14, 15
"""What the other side says; the data of CLOSED is a ChannelEnd as JSON."""


class FrameProtocol(asyncio.Protocol):
    """One side of a connection; what it does with a frame is said by the side.

    Attributes:
        most: bytes of data that a frame may have now.
    """

    transport: asyncio.Transport
    max_data = MAX_DATA

    def __init__(self) -> None:
        self._buffer = bytearray()

    def frame_received(self, kind: int, data: bytes) -> None:
        """Take a frame."""
        raise NotImplementedError

    def send_frame(self, kind: int, data: bytes = b"") -> None:
        """Send a frame."""
        self.transport.write(HEADER.pack(kind, len(data)) + data)

    def send_end(self, end: ChannelEnd) -> None:
        """Say how the daemon's channel has ended, and nothing after it; the head hangs up when it has heard all.

        Until then its words are taken, whatever they are: were the connection closed now, one that the head is about to say
        would fail, and with it would go what it has not read.
        """
        self.send_frame(CLOSED, json.dumps([end.exit_code, end.error, end.cause]).encode())
        self.transport.write_eof()
        self.transport.resume_reading()

    @property
    def peer_credentials(self) -> tuple[int, int, int]:
        """Process, user and group at the other end of a Unix socket (unix(7), SO_PEERCRED)."""
        end = self.transport.get_extra_info("socket")
        process, user, group = _PEER.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        return process, user, group

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
    """The head's side, which is an agent's channel.

    Attributes:
        events: get what the daemon says; None while there is no daemon yet.

    Args:
        lost: what has happened when the connection ends without a word.
    """

    def __init__(self, events: ChannelEvents | None, lost: str) -> None:
        super().__init__()
        self.events = events
        self._end = ChannelEnd(None, lost)
        self._said_all = False

    def write(self, data: bytes) -> None:
        """Send bytes to the daemon's stdin; after its end they go nowhere."""
        if data and not self._said_all:
            self.send_frame(STDIN, data)

    def write_eof(self) -> None:
        """Close the daemon's stdin."""
        self._said_all = True
        self.send_frame(STDIN)

    def abort(self) -> None:
        """Cut the connection: the other side cuts the daemon off."""
        self.transport.abort()

    def frame_received(self, kind: int, data: bytes) -> None:
        """Hand on what the daemon says."""
        if self.events is None:
            return
        if kind == STDOUT:
            self.events.data_received(data)
        elif kind == STDERR:
            self.events.stderr_received(data)
        elif kind == CLOSED:
            self._end = ChannelEnd(*json.loads(data))

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the end."""
        if self.events is not None:
            self.events.closed(self._end)

    def pause_writing(self) -> None:
        """The connection is full."""
        if self.events is not None:
            self.events.pause_writing()

    def resume_writing(self) -> None:
        """It takes data again."""
        if self.events is not None:
            self.events.resume_writing()


class RequestChannel(RelayedChannel):
    """One that first asks for its daemon; nothing is told of a daemon that is not given.

    Args:
        taker: gets what the daemon says.
        given: the answer with which the daemon is there; all that comes after it is the daemon's.
        lost: as above.
    """

    def __init__(self, taker: ChannelEvents, given: int, lost: str) -> None:
        super().__init__(None, lost)
        self._taker, self._given = taker, given
        self._answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    async def request(self, kind: int, request: bytes) -> tuple[int, bytes]:
        """Ask; return the answer's kind and data, or (0, b"") when there was none."""
        self.send_frame(kind, request)
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.abort()
            raise

    def frame_received(self, kind: int, data: bytes) -> None:
        """Take the answer, and hand on what the daemon says."""
        if self._answer.done():
            super().frame_received(kind, data)
        else:
            self.events = self._taker if kind == self._given else None
            self._answer.set_result((kind, data))

    def connection_lost(self, error: Exception | None) -> None:
        """Take it for an answer, or tell the end."""
        if not self._answer.done():
            self._answer.set_result((0, b""))
        super().connection_lost(error)
