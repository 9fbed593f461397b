"""The output of a detached job as it is kept: records, each with its stream and the rank that wrote it. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

HEAD = struct.Struct(">BiI")
"""Stream, rank, bytes of the text, which follows."""
NO_RANK = -1
"""In place of the rank: mpilaunch itself, or several ranks."""
STREAMS = (1, 2)


class Record(NamedTuple):
    """A piece of output: its stream (1 or 2), the rank or NO_RANK, and the text."""

    stream: int
    rank: int
    text: bytes


class BrokenRecord(ValueError):
    """What was kept is damaged."""


def encode(stream: int, rank: int, text: bytes) -> bytes:
    return HEAD.pack(stream, rank, len(text)) + text


def whole(data: bytes | bytearray) -> int:
    """Return how many of these bytes, which begin with a record, are whole records."""
    return max((end for *_, end in _whole(data)), default=0)


def _whole(data: bytes | bytearray) -> Iterator[tuple[int, int, int, int]]:
    """Yield stream, rank, begin and end of the text of each record that is whole."""
    end = 0
    while len(data) - end >= HEAD.size:
        stream, rank, size = HEAD.unpack_from(data, end)
        begin, end = end + HEAD.size, end + HEAD.size + size
        if end > len(data):
            break
        yield stream, rank, begin, end


class Decoder:
    """Takes the records in pieces of any size."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Record]:
        """Return the records that are whole now; raises BrokenRecord."""
        self._data += data
        found, taken = [], 0
        for stream, rank, begin, taken in _whole(self._data):
            if stream not in STREAMS:
                raise BrokenRecord("not a record")
            found.append(Record(stream, rank, bytes(self._data[begin:taken])))
        del self._data[:taken]
        return found
