"""What makes a lost wire good: how much was received, and what was sent and perhaps was not.

No I/O. Both sides count the bytes of frames since the marker. What was sent is kept until the other side has said that it came;
on a new channel each side begins with RESUME and its count, and gets the rest (docs/wire.md).
"""

from __future__ import annotations

import struct

from mpilaunch.wire.frames import HEADER, KINDS, MAGIC, RESUME, WireError, frame

COUNT = struct.Struct(">Q")
RESUME_SIZE = HEADER.size + COUNT.size
ACK_EVERY = 256 << 10
"""Received bytes after which the other side is told, so that it need not keep them."""


class Unacknowledged:
    """What was sent, in the pieces it was made of, until the other side has heard it.

    Args:
        sent: bytes that were sent before, of which nothing is kept.
    """

    def __init__(self, sent: int = 0) -> None:
        self._chunks: list[bytes] = []
        self._first = self._end = sent

    def add(self, pieces: list[bytes]) -> None:
        """Keep what is sent now; a piece that many nodes are sent is there once."""
        self._chunks += pieces
        self._end += sum(map(len, pieces))

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._end - self._first

    def acknowledge(self, count: int) -> None:
        """Forget what lies before the first `count` bytes; raises WireError when there were not so many."""
        self._check(count)
        gone = 0
        for chunk in self._chunks:
            if self._first + len(chunk) > count:
                break
            self._first += len(chunk)
            gone += 1
        del self._chunks[:gone]

    def after(self, count: int) -> bytes:
        """Return what was sent after the first `count` bytes; raises WireError when it is not there any more, or never was."""
        self._check(count)
        return b"".join(self._chunks)[count - self._first :]

    def _check(self, count: int) -> None:
        if not self._first <= count <= self._end:
            raise WireError("%d bytes are said to have come, of %d, with those from %d kept" % (count, self._end, self._first))


def resume_frame(received: int) -> bytes:
    """Return the first frame on a new channel: `received` bytes of frames have come on the old ones."""
    return frame(RESUME, 0, COUNT.pack(received))


def resume_count(data: bytes) -> int:
    """Return the count in the RESUME_SIZE bytes of that frame; raises WireError."""
    magic, kind, _, length = HEADER.unpack_from(data)
    if (magic, kind, length) != (MAGIC, RESUME, COUNT.size):
        raise WireError("a new channel begins with %s instead of RESUME" % KINDS.get(kind, "nothing known"))
    return int(COUNT.unpack_from(data, HEADER.size)[0])
