"""DaemonThreadExecutor for calls that block, above all to name servers: neither the end of a launch nor that of Python waits for them.

The threads of the standard library's executor are joined when Python exits, however long a name server takes to answer; these
are daemon threads.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

MOST_THREADS = 64
"""As many as there are nodes contacted at a time, by default."""


class DaemonThreadExecutor(ThreadPoolExecutor):
    """An executor of daemon threads; asyncio accepts only subclasses of this class as its default executor."""

    def __init__(self) -> None:
        super().__init__(MOST_THREADS)
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._started = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a thread."""
        future: Future[Any] = Future()
        self._calls.put((future, lambda: fn(*args, **kwargs)))
        if self._started < MOST_THREADS:
            self._started += 1
            threading.Thread(target=_serve, args=(self._calls,), name="wait", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Return at once; the threads end with the process."""


Call = tuple["Future[Any]", Callable[[], Any]]


def _serve(calls: queue.SimpleQueue[Call]) -> None:
    while True:
        future, call = calls.get()
        if not future.set_running_or_notify_cancel():
            continue
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
