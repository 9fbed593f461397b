"""Limits in time on what a coroutine waits for: `async with timeout(seconds)`, which raises asyncio.TimeoutError.

Nothing calls `asyncio.wait_for`: until Python 3.12 it loses a cancellation that comes as the awaited ends
(https://github.com/python/cpython/issues/86296), and a task that asks again and again would never end.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from contextlib import suppress

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout

__all__ = ["timeout", "wait_at_most"]


async def wait_at_most(seconds: float, awaited: Awaitable[object]) -> None:
    """Return when the awaited has ended, or after this time, when it is cancelled; infinity is no limit."""
    with suppress(asyncio.TimeoutError):
        async with timeout(seconds):
            await awaited
