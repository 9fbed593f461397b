"""Frames, the units of the wire.

No I/O: the reader takes bytes as they arrive and returns whole frames. A frame that breaks a rule raises WireError, and nothing
after it is read.
"""

from __future__ import annotations

import struct

MAGIC = 0x4D4C
MARKER = b"\0mpilaunch-wire-1\0"
HEADER = struct.Struct(">HBxII")

CONTROL, DATA, END, CREDIT, PING, PONG, ACK, RESUME = 1, 2, 3, 4, 5, 6, 7, 8
KINDS = {
    CONTROL: "CONTROL", DATA: "DATA", END: "END", CREDIT: "CREDIT", PING: "PING", PONG: "PONG", ACK: "ACK", RESUME: "RESUME"
}  # fmt: skip

MAX_CONTROL = 64 << 20
MAX_DATA = 256 << 10
LENGTHS = {DATA: (1, MAX_DATA), END: (0, 0), CREDIT: (4, 4), PING: (8, 8), PONG: (16, 16), ACK: (8, 8)}
"""Least and most payload bytes of each kind. The limit of CONTROL is an argument of FrameReader; RESUME is valid at the
beginning of a channel only (`wire.session`)."""
STANDBY = "standby"
"""Argument of the boot line for a daemon that loads itself, sends the marker, and waits for GO."""
GO = b"\n"
"""Sent to a standby daemon: a job begins."""
KEEP = b"."
"""Sent to a standby daemon now and then: its keeper lives."""

STDIN, STDOUT, STDERR = 0, 1, 2


class WireError(Exception):
    """The other side broke the protocol; the text describes the fault."""


def stream_channel(rank: int, stream: int) -> int:
    """Return the channel of a rank's STDIN, STDOUT or STDERR."""
    return rank * 4 + stream


def rank_of(channel: int) -> int:
    return channel // 4


def frame(kind: int, channel: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(MAGIC, kind, channel, len(payload)) + payload


class FrameReader:
    """Splits a byte stream into frames; `max_control` limits the payload of a CONTROL frame."""

    def __init__(self, max_control: int = MAX_CONTROL) -> None:
        self._limits = dict(LENGTHS)
        self._limits[CONTROL] = (2, max_control)
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[tuple[int, int, bytes]]:
        """Take bytes; return the frames that are complete now, as (kind, channel, payload); raises WireError."""
        buffer = self._buffer
        buffer += data
        frames: list[tuple[int, int, bytes]] = []
        start, available = 0, len(buffer)
        with memoryview(buffer) as view:
            while available - start >= HEADER.size:
                magic, kind, channel, length = HEADER.unpack_from(buffer, start)
                self._check(magic, kind, length)
                end = start + HEADER.size + length
                if end > available:
                    break
                frames.append((kind, channel, bytes(view[start + HEADER.size : end])))
                start = end
        del buffer[:start]
        return frames

    def _check(self, magic: int, kind: int, length: int) -> None:
        if magic != MAGIC:
            raise WireError("frame begins with 0x%04x instead of 0x%04x" % (magic, MAGIC))
        if kind not in self._limits:
            raise WireError("unknown kind of frame %d" % kind)
        least, most = self._limits[kind]
        if not least <= length <= most:
            raise WireError("%s of %d bytes, allowed are %d to %d" % (KINDS[kind], length, least, most))
