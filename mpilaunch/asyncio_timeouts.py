"""Limits in time on what a coroutine waits for: `async with timeout(seconds)`, which raises asyncio.TimeoutError.

Nothing calls `asyncio.wait_for`: until Python 3.12 it loses a cancellation that comes as the awaited ends
(https://github.com/python/cpython/issues/86296), and a task that asks again and again would never end. With Python 3.10,
`timeout` still loses one that comes in the very step in which the limit strikes. What is awaited in a cleanup, whose task may
have been cancelled, uses `wait_at_most`: there `asyncio.timeout` of Python 3.11.0 to 3.11.2 raises CancelledError.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout

__all__ = ["timeout", "wait_at_most"]


async def wait_at_most(seconds: float, awaited: Awaitable[object]) -> None:
    """Return when the awaited has ended, whose errors it raises, or after this time, when it is cancelled.

    Infinity is no limit.
    """
    task = asyncio.ensure_future(awaited)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    finally:
        task.cancel()
    if done:
        task.result()
    else:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # gather's future has the cancellation as an error, which would be logged otherwise
