"""Tells when a server that the job runs answers HTTP (`--ready`): a line for the user, and nothing that changes the job.

The head asks, once a second, until the server answers with a code of success.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from mpilaunch.asyncio_timeouts import timeout
from mpilaunch.job.servers.ready import ReadyUrl

PAUSE = 1.0
"""Seconds between two requests."""
LIMIT = 5.0
"""Seconds of one request."""
LONGEST = 1 << 10
"""Bytes of an answer's first line that are read."""


async def watch(url: ReadyUrl, host: str, say: Callable[[str], None]) -> None:
    """Return once the server has answered, which is said; `host` is that of rank 0, for a URL without one."""
    began = time.monotonic()
    at = url.host or host
    while not await _answers(url, at):
        await asyncio.sleep(PAUSE)
    say(f"ready: {url.at(at)} answers after {time.monotonic() - began:.1f} s")


async def _answers(url: ReadyUrl, host: str) -> bool:
    """Return whether the server answers with a code from 200 to 299."""
    try:
        async with timeout(LIMIT):
            line = await _first_line(url, host)
    except (OSError, ValueError, asyncio.TimeoutError):  # ValueError: a line beyond the limit
        return False
    words = line.split(None, 2)
    return len(words) > 1 and words[0].startswith(b"HTTP/") and len(words[1]) == 3 and words[1].startswith(b"2")


async def _first_line(url: ReadyUrl, host: str) -> bytes:
    reader, writer = await asyncio.open_connection(host, url.port, limit=LONGEST)
    try:
        writer.write(url.request(host))
        return await reader.readline()
    finally:
        writer.close()
