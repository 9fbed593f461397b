"""The memory of another process, read through /proc/PID/mem. Nothing is written.

The kernel lets a user read processes of his own that he could trace (ptrace(2), "ptrace access mode checking"); with Yama's
ptrace_scope 1 those are descendants of the reader, as ranks are of the daemon. What is read is not trusted: each read is
bounded in size, and all reads of one Memory together in time.
"""

from __future__ import annotations

import os
import struct
import time

SECONDS = 1.0
"""Time for one process; that of a training job with 30 threads takes a hundredth."""
LARGEST = 256 << 10
"""Bytes of one read."""
_WORD = struct.Struct("<Q")
_HALF = struct.Struct("<i")


class Unreadable(Exception):
    """The memory may not be read, or what is there is not what it should be."""


class Memory:
    """The memory of one process with 64-bit addresses, while this object is open."""

    def __init__(self, pid: int) -> None:
        try:
            self._file = os.open("/proc/%d/mem" % pid, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Unreadable(str(error)) from None
        self._until = time.monotonic() + SECONDS

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self._file)

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes; raises Unreadable."""
        if not 0 <= size <= LARGEST or time.monotonic() > self._until:
            raise Unreadable("more than any interpreter has")
        try:
            data = os.pread(self._file, size, address)
        except (OSError, OverflowError) as error:
            raise Unreadable(str(error)) from None
        if len(data) != size:
            raise Unreadable("the memory ends")
        return data

    def word(self, address: int) -> int:
        """Return an address or a size that stands in memory; raises Unreadable."""
        return int(_WORD.unpack(self.read(address, 8))[0])

    def number(self, address: int) -> int:
        """Return a C int; raises Unreadable."""
        return int(_HALF.unpack(self.read(address, 4))[0])
