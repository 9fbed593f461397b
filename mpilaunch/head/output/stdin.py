"""The head's stdin for the ranks: read only when a rank can take it, and given back when it did not.

A terminal is not read unless the user says so. Of a file, the offset is set back at the end to what the rank has really read,
so that a loop around mpilaunch that reads the same file goes on with the next line.
"""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import suppress

from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.wire.frames import MAX_DATA, STDIN, stream_channel


class StdinForwarder:
    """Copy stdin to one rank or to all.

    Args:
        targets: rank and link of each rank that gets it.
    """

    def __init__(self, targets: dict[int, NodeLink]) -> None:
        self._targets = {stream_channel(rank, STDIN): link for rank, link in targets.items()}
        self._single = len(targets) == 1
        self._loop = asyncio.get_running_loop()
        self._polled = False
        self._ended = False
        self._start: int | None = None
        self._source = 0
        kind = os.fstat(0).st_mode if targets else 0
        if stat.S_ISREG(kind):
            self._start = os.lseek(0, 0, os.SEEK_CUR)
        elif stat.S_ISFIFO(kind):
            # Others may read the same pipe, and what the kernel has announced to all is for the first.
            with suppress(OSError):  # of another user
                self._source = os.open("/proc/self/fd/0", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.more_credit()

    def more_credit(self) -> None:
        """Read on: a rank may take more now."""
        while not self._ended and not self._polled and self._room():
            try:
                self._loop.add_reader(self._source, self._read)
                self._polled = True
            except PermissionError:
                # A file is always ready, and the kernel does not poll it.
                self._read()

    def rank_ended(self, rank: int, consumed: int | None) -> None:
        """A rank has gone and had read so many bytes; None: it was lost, and nobody knows."""
        if self._targets.pop(stream_channel(rank, STDIN), None) is None:
            return
        if self._start is not None and self._single and consumed is not None:
            os.lseek(0, self._start + consumed, os.SEEK_SET)
        if self._targets:
            self.more_credit()
        else:
            self.close()

    def close(self) -> None:
        """Read no more."""
        self._ended = True
        self._stop_polling()
        if self._source:
            os.close(self._source)
            self._source = 0

    def _room(self) -> int:
        credits = [link.input_credit(channel) for channel, link in self._targets.items()]
        return min(credits, default=0)

    def _read(self) -> None:
        size = min(self._room(), MAX_DATA)
        if size == 0:
            self._stop_polling()
            return
        try:
            data = os.read(self._source, size)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for channel, link in self._targets.items():
            link.send_input(channel, data)
        if not data:
            self.close()

    def _stop_polling(self) -> None:
        if self._polled:
            self._polled = False
            self._loop.remove_reader(self._source)
