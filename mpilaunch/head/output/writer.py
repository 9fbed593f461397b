"""Write blocks of whole lines to a descriptor that may be slow, without blocking the event loop.

A thread per writer writes the blocks in order and whole. Descriptors of the same file share a writer, so a line of one never
lands inside a line of the other. The queue is bounded, because credit is granted again only after the write.
"""

from __future__ import annotations

import asyncio
import collections
import errno
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mpilaunch.head.os_limits import start_thread

Written = Callable[[], None]

END = -2
"""What is queued in the place of a descriptor, for the thread to end."""
JOIN = 1 << 20
"""Largest number of bytes that are joined for one write."""


class Writer:
    """Writes blocks to descriptors of one file, in order.

    Attributes:
        written: number of bytes written so far.

    Args:
        broken: called once in the loop, with the error, when a write fails; later blocks are dropped and count as written.
        patience: seconds in which the reader of a pipe must take something; None for any time.
    """

    def __init__(self, broken: Callable[[OSError], None], patience: float | None = None) -> None:
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._broken = broken
        self._queue: collections.deque[tuple[int, bytes, Written | None]] = collections.deque()
        self._wake = threading.Semaphore(0)
        self._error: OSError | None = None
        self.written = self._taken = 0
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the writer's thread; raises LaunchError. A launch does so before any rank runs, whose output would be stuck."""
        if self._thread is None:
            # A daemon thread: a reader that never reads must not keep a finished job from ending.
            thread = threading.Thread(target=self._run, name="mpilaunch-writer", daemon=True)
            start_thread(thread)
            self._thread = thread

    def write(self, descriptor: int, block: bytes, written: Written | None = None) -> None:
        """Queue a block; `written` is called in the loop when the block is written."""
        self.begin()
        self._taken += len(block)
        self._queue.append((descriptor, block, written))
        self._wake.release()

    @property
    def queued(self) -> bool:
        return self._taken > self.written and self._error is None

    async def drain(self) -> None:
        """Return when everything queued is written or has failed."""
        if self._thread is not None:
            done = asyncio.Event()
            self.write(-1, b"", done.set)
            await done.wait()

    def close(self) -> None:
        """Let the thread end once it has written everything queued; a later block would start another."""
        if self._thread is not None:
            self._thread = None
            self._queue.append((END, b"", None))
            self._wake.release()

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            taken = [self._queue.popleft()]
            if taken[0][0] == END:
                return
            size = len(taken[0][1])
            # Join the small blocks of many ranks into one write.
            while size < JOIN and self._queue and self._queue[0][0] == taken[0][0] and self._wake.acquire(blocking=False):
                taken.append(self._queue.popleft())
                size += len(taken[-1][1])
            self._write_all(taken[0][0], taken[0][1] if len(taken) == 1 else b"".join(item[1] for item in taken))
            callbacks = [item[2] for item in taken if item[2] is not None]
            if callbacks:
                self._call(_call_all, callbacks)

    def _write_all(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        # A pipe that poll reports as writable takes PIPE_BUF bytes at once, also where its descriptor is blocking.
        most = len(view) if self._patience is None else select.PIPE_BUF
        while view and self._error is None:
            try:
                if self._patience is not None:
                    self._await_room(descriptor)
                size = os.write(descriptor, view[:most])
                view = view[size:]
                self.written += size
            except BlockingIOError:
                self._await_room(descriptor)  # another process has made standard output non-blocking; this thread may wait
            except OSError as error:
                self._fail(error)

    def _await_room(self, descriptor: int) -> None:
        """Wait until a descriptor is writable; raises TimeoutError."""
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        if not poll.poll(None if self._patience is None else self._patience * 1000):
            raise TimeoutError(errno.ETIMEDOUT, f"nobody has read it for {self._patience:g} s")

    def _fail(self, error: OSError) -> None:
        self._error = error
        self._call(self._broken, error)

    def _call(self, function: Callable[[Any], None], value: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: mpilaunch is ending
            self._loop.call_soon_threadsafe(function, value)


def _call_all(callbacks: list[Written]) -> None:
    for callback in callbacks:
        callback()
