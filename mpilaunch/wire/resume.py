"""Resumption after a lost channel: counts of received bytes, and the sent bytes that are not acknowledged.

No I/O. Both sides count the bytes of frames since the marker, and keep what they send until the other side acknowledges it. On
a new channel each side begins with RESUME and its count, and gets the rest (docs/wire.md).
"""

from __future__ import annotations

import struct

from mpilaunch.wire.frames import HEADER, KINDS, MAGIC, RESUME, WireError, frame

COUNT = struct.Struct(">Q")
RESUME_SIZE = HEADER.size + COUNT.size
ACK_EVERY = 256 << 10
"""Received bytes after which an ACK is sent."""


class Unacknowledged:
    """Sent pieces that are kept until the other side acknowledges them.

    Args:
        sent: bytes that were sent before, and are not kept.
    """

    def __init__(self, sent: int = 0) -> None:
        self._chunks: list[bytes] = []
        self._first = self._end = sent

    def add(self, pieces: list[bytes]) -> None:
        """Keep pieces that are sent now. A piece that goes to many nodes is one object, and stored once."""
        self._chunks += pieces
        self._end += sum(map(len, pieces))

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._end - self._first

    def acknowledge(self, count: int) -> None:
        """Drop the first `count` bytes of the stream; raises WireError if fewer were sent."""
        self._check(count)
        dropped = 0
        for chunk in self._chunks:
            if self._first + len(chunk) > count:
                break
            self._first += len(chunk)
            dropped += 1
        del self._chunks[:dropped]

    def after(self, count: int) -> bytes:
        """Return the bytes after the first `count` of the stream; raises WireError if they are not kept or were never sent."""
        self._check(count)
        return b"".join(self._chunks)[count - self._first :]

    def _check(self, count: int) -> None:
        if not self._first <= count <= self._end:
            raise WireError("%d bytes acknowledged of %d sent, with those from %d kept" % (count, self._end, self._first))


def resume_frame(received: int) -> bytes:
    """Return the first frame on a new channel, after `received` bytes of frames on the old ones."""
    return frame(RESUME, 0, COUNT.pack(received))


def resume_count(data: bytes) -> int:
    """Return the count in a frame of RESUME_SIZE bytes; raises WireError."""
    magic, kind, _, length = HEADER.unpack_from(data)
    if (magic, kind, length) != (MAGIC, RESUME, COUNT.size):
        raise WireError("a new channel begins with %s instead of RESUME" % KINDS.get(kind, "nothing known"))
    return int(COUNT.unpack_from(data, HEADER.size)[0])
