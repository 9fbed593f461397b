"""A ProxyCommand of ssh that delays every byte: `proxy.py HOST PORT SECONDS`. It ends with either side, or after a while.

It must never hold more than a window of each direction: a reader that stops slows the writer, as a network does.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections import deque

LONGEST_LIFE = 300.0
WINDOW = 1 << 20


class Direction:
    """The bytes that go one way, each held back for `delay` seconds."""

    def __init__(self, source: int, target: int, delay: float) -> None:
        self.source, self.target, self._delay = source, target, delay
        self._held: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._ended = False

    @property
    def done(self) -> bool:
        """Whether the source has ended and all has been written."""
        return self._ended and not self._held

    @property
    def wants_read(self) -> bool:
        """Whether there is room."""
        return not self._ended and self._size < WINDOW

    @property
    def due(self) -> float | None:
        """When the next byte is to be written, None for no byte."""
        return self._held[0][0] if self._held else None

    def read(self) -> None:
        """Take what is there."""
        data = os.read(self.source, 65536)
        self._ended = not data
        if data:
            self._held.append((time.monotonic() + self._delay, data))
            self._size += len(data)

    def write(self) -> None:
        """Write the first piece."""
        when, data = self._held.popleft()
        written = os.write(self.target, data)
        self._size -= written
        if written < len(data):
            self._held.appendleft((when, data[written:]))


def main(host: str, port: str, delay: str) -> None:
    """Pass bytes until either side has ended."""
    end = time.monotonic() + LONGEST_LIFE
    with socket.create_connection((host, int(port)), timeout=30) as peer:
        peer.setblocking(False)
        directions = (Direction(0, peer.fileno(), float(delay)), Direction(peer.fileno(), 1, float(delay)))
        while not any(one.done for one in directions) and time.monotonic() < end:
            now = time.monotonic()
            dues = [one.due for one in directions if one.due is not None]
            writers = [one.target for one in directions if one.due is not None and one.due <= now]
            wait = 1.0 if not dues or min(dues) <= now else min(1.0, min(dues) - now)
            readers = [one.source for one in directions if one.wants_read]
            readable, writable, _ = select.select(readers, writers, [], wait)
            for one in directions:
                if one.source in readable:
                    one.read()
                if one.target in writable:
                    one.write()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(f"proxy: {error}")
