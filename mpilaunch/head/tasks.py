"""Helpers for asyncio futures and tasks that the head's modules share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")

CANCEL_AGAIN = 1.0
"""Seconds after which a task that has not ended is cancelled again."""


def settle(future: asyncio.Future[Result], result: Result) -> None:
    """Set a future's result unless it is done already."""
    if not future.done():
        future.set_result(result)


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended; before Python 3.12, asyncio.wait_for may swallow a cancellation."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN)
