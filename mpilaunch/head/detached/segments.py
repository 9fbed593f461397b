"""The kept output: files of whole records, of which the oldest is removed when they have too many bytes together."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator

from mpilaunch.head.detached.records import Decoder, Record, whole
from mpilaunch.head.safe_files import write_all

LARGEST, MOST = 10 << 20, 10
"""Bytes of a file, and files of a job."""
BLOCK = 1 << 20
RECENT = 10
"""Records that are shown before new ones."""
LOOK = 0.1
"""Seconds between looks for new output."""
_NAME = re.compile(r"output\.(\d{6})")


def _name(number: int) -> str:
    return f"output.{number:06}"


class SegmentWriter:
    """Writes records into files of a directory; raises OSError."""

    def __init__(self, directory: int) -> None:
        self._directory, self._number, self._size = directory, 0, 0
        self._file = -1
        self._rest = bytearray()

    def write_pieces(self, data: bytes) -> None:
        """Write records that come in pieces of any size, each when it is whole."""
        self._rest += data
        end = whole(self._rest)
        if end:
            self.write(bytes(self._rest[:end]))
            del self._rest[:end]

    def write(self, records: bytes) -> None:
        """Write whole records."""
        if self._file < 0 or self._size + len(records) > LARGEST:
            self._begin()
        try:
            write_all(self._file, records)
        except OSError:  # a part of a record would spoil those that are written once there is room again
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise
        self._size += len(records)

    def _begin(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        begun = os.open(_name(self._number + 1), flags, 0o600, dir_fd=self._directory)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._number, self._size = begun, self._number + 1, 0
        if self._number > MOST:
            os.unlink(_name(self._number - MOST), dir_fd=self._directory)


def numbers(directory: int) -> list[int]:
    """Return the numbers of the files that are kept, in order."""
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, os.listdir(directory)) if match)


def read(
    directory: int, ended: Callable[[], bool] | None, dropped: Callable[[], None], *, new: bool = False
) -> Iterator[list[Record]]:
    """Yield the kept records; raises OSError, BrokenRecord.

    Args:
        ended: wait for more until this is true; None to end with what is there.
        dropped: called where output is missing that was removed.
        new: begin with the last RECENT of those that are there.
    """
    number = max(numbers(directory), default=1) - 1 if new else 0
    while True:
        last = ended is None or ended()  # before looking for more
        later = [each for each in numbers(directory) if each > number]
        if later:
            if later[0] != number + 1:
                dropped()
            number = later[0]
            yield from _segment(directory, number, ended, new=new)
            new = False
        elif last:
            return
        else:
            time.sleep(LOOK)


def _segment(directory: int, number: int, ended: Callable[[], bool] | None, *, new: bool) -> Iterator[list[Record]]:
    """Yield the records of a file until there is a later one, or no more."""
    decoder = Decoder()
    try:
        descriptor = os.open(_name(number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return  # it has just been removed
    with open(descriptor, "rb", buffering=0) as file:
        if new:
            yield decoder.feed(file.read(LARGEST))[-RECENT:]
        while True:
            last = ended is None or ended() or any(each > number for each in numbers(directory))
            while data := file.read(BLOCK):
                yield decoder.feed(data)
            if last:
                return
            time.sleep(LOOK)
