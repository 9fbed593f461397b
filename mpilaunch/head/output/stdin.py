"""Forward stdin to the ranks; it is read only when a rank can take more.

When stdin is a file, its offset is set back at the end to what the rank has actually read, so a shell loop around mpilaunch
that reads the same file continues with the next line.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from contextlib import suppress

from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.wire.frames import MAX_DATA, STDIN, WireError, stream_channel


class StdinForwarder:
    """Copies stdin to the ranks among `targets`, on nodes with these indexes, from the first `more_credit` on."""

    def __init__(self, targets: Mapping[int, int], links: Mapping[int, NodeLink]) -> None:
        self._targets = {stream_channel(rank, STDIN): node for rank, node in targets.items()}
        self._links = links
        self._single = len(targets) == 1
        self._to_check = list(self._targets)
        self._loop = asyncio.get_running_loop()
        self._polled = self._ended = False
        self._start: int | None = None
        self._sent = 0
        self._source = 0
        kind = os.fstat(0).st_mode if targets else 0
        if stat.S_ISREG(kind):
            self._start = os.lseek(0, 0, os.SEEK_CUR)
        elif stat.S_ISFIFO(kind):
            # Other processes may read the same pipe and take what poll has announced, so the read must not block. A file
            # description of our own keeps O_NONBLOCK from them.
            with suppress(OSError):  # the pipe of another user cannot be opened
                self._source = os.open("/proc/self/fd/0", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def credit(self, channel: int) -> None:
        """Continue reading: the rank of this channel can take more."""
        if channel in self._targets:
            self.more_credit()

    def more_credit(self) -> None:
        """Continue reading: a rank may take more now."""
        while not self._ended and not self._polled and self._room():
            try:
                self._loop.add_reader(self._source, self._read)
                self._polled = True
            except PermissionError:
                # epoll refuses regular files, which are always ready.
                self._read()

    def rank_ended(self, rank: int, consumed: int | None) -> None:
        """Remove a rank that has ended after reading `consumed` bytes; None when it was lost and the number is unknown.

        Raises WireError for more bytes than it was sent: a node must not move the offset of the user's file.
        """
        if self._targets.pop(stream_channel(rank, STDIN), None) is None:
            return
        if consumed is not None and consumed > self._sent:
            raise WireError(f"rank {rank} has read {consumed} bytes of stdin, of {self._sent} sent")
        if self._start is not None and self._single and consumed is not None:
            os.lseek(0, self._start + consumed, os.SEEK_SET)
        if self._targets:
            self.more_credit()
        else:
            self.close()

    def close(self) -> None:
        self._end_reading()

    def _end_reading(self) -> None:
        self._ended = True
        self._stop_polling()
        if self._source:
            os.close(self._source)
            self._source = 0

    def _room(self) -> int:
        # Each rank answers for itself, and one that can take more can do so until more is sent: none is asked again.
        while self._to_check:
            channel = self._to_check[-1]
            if channel in self._targets and not self._credit(channel):
                return 0
            self._to_check.pop()
        return min(map(self._credit, self._targets), default=0)

    def _credit(self, channel: int) -> int:
        return self._links[self._targets[channel]].session.credit(channel)

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
        self._sent += len(data)
        self._pass_on(data)
        if not data:
            self._end_reading()

    def _pass_on(self, data: bytes) -> None:
        self._to_check = list(self._targets)
        for channel, node in self._targets.items():
            self._links[node].send_input(channel, data)

    def _stop_polling(self) -> None:
        if self._polled:
            self._polled = False
            self._loop.remove_reader(self._source)
