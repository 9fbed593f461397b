"""An executor of daemon threads for blocking calls, above all host name look-ups; nothing waits for them at exit.

Python joins the threads of the standard library's executor at exit, however long a name server takes to answer.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from mpilaunch.head.os_limits import start_thread

MOST_THREADS = 64
"""The default of --fanout: the number of nodes contacted at a time."""


class DaemonThreadExecutor(ThreadPoolExecutor):
    """An executor of daemon threads; a ThreadPoolExecutor because asyncio accepts no other default executor."""

    def __init__(self) -> None:
        super().__init__(MOST_THREADS)
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._started = 1
        # Without this thread, no call would ever end; the further ones only make them faster.
        start_thread(self._thread())

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        if self._started < MOST_THREADS:
            with suppress(RuntimeError):  # the limit of processes: the threads that run take the call
                self._thread().start()
                self._started += 1
        return future

    def _thread(self) -> threading.Thread:
        return threading.Thread(target=self._serve, name="wait", daemon=True)

    def _serve(self) -> None:
        while True:
            future, call = self._calls.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Return at once; the threads end with the process."""


def use_daemon_threads() -> None:
    """Let the running event loop make blocking calls in daemon threads; raises LaunchError when no thread can be started."""
    asyncio.get_running_loop().set_default_executor(DaemonThreadExecutor())
