"""Helpers for asyncio futures and tasks that the head's modules share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")

TURN_SECONDS = 0.01
"""Seconds of one turn of the loop that the work of one node may take."""
CANCEL_AGAIN = 1.0
"""Seconds after which a task that has not ended is cancelled again."""


def settle(future: asyncio.Future[Result], result: Result) -> None:
    """Set a future's result unless it is done already."""
    if not future.done():
        future.set_result(result)


def start(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None], failed: Callable[[BaseException], None]) -> None:
    """Run a coroutine as a task, held in `tasks` until it ends; call `failed` with the exception that it raises."""

    def ended(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            failed(error)

    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(ended)


class Slices:
    """Work of any length, done in slices of the loop's time: other events come between them.

    Args:
        step: does the next piece, far shorter than TURN_SECONDS; returns whether there was one.
        after: called at the end of each slice, with whether more may be left.
    """

    def __init__(self, step: Callable[[], bool], after: Callable[[bool], None] = lambda left: None) -> None:
        self._step, self._after = step, after
        self.busy = False
        self._loop = asyncio.get_running_loop()

    def run(self) -> None:
        """Begin, unless the work is under way."""
        if not self.busy:
            self.busy = True
            self._slice()

    def _slice(self) -> None:
        ends = time.monotonic() + TURN_SECONDS
        left = True
        try:
            while left and time.monotonic() < ends:
                left = self._step()
        finally:  # a fault in one piece does not hold the others back
            self.busy = left
            if left:
                self._loop.call_soon(self._slice)
        self._after(left)


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended; with Python 3.10, one may swallow a cancellation."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in a new event loop and end its other tasks.

    asyncio.run does so too, but starts a thread to shut the executor down, which fails at the limit of processes, and the
    executor of `head.threads` needs no shutdown.
    """
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(main)
    finally:
        try:
            loop.run_until_complete(cancel_all(asyncio.all_tasks(loop)))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
