"""Limits in time: what takes too long is cancelled, and no cancellation is lost."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress

import pytest

from mpilaunch.asyncio_timeouts import timeout, wait_at_most


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.01])
def test_what_takes_too_long_is_cancelled(seconds: float) -> None:
    async def main() -> None:
        late, silent = asyncio.Event(), asyncio.Future[None]()
        with pytest.raises(asyncio.TimeoutError):
            async with timeout(seconds):
                await silent
        assert silent.cancelled()
        await wait_at_most(seconds, late.wait())
        assert not late.is_set()

    asyncio.run(main())


def test_errors_are_those_of_what_ended_in_time() -> None:
    async def fail() -> None:
        raise OSError("gone")

    async def late(told: list[str]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append("ended")
            raise OSError("too late")

    async def main() -> None:
        with pytest.raises(OSError, match="gone"):
            await wait_at_most(20, fail())
        told: list[str] = []
        await wait_at_most(0.01, late(told))
        assert told == ["ended"]
        await wait_at_most(0.01, asyncio.gather(asyncio.Event().wait(), late(told)))
        waiting = asyncio.ensure_future(wait_at_most(20, late(told)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=20)
        assert waiting.cancelled()

    asyncio.run(main())


def test_what_has_ended_is_no_matter_of_time() -> None:
    async def main() -> None:
        ended = asyncio.Event()
        ended.set()
        async with timeout(0):
            await ended.wait()
        asyncio.get_running_loop().call_later(0.01, ended.set)
        ended.clear()
        await wait_at_most(math.inf, ended.wait())
        assert ended.is_set()

    asyncio.run(main())


def test_a_cancellation_that_comes_as_the_awaited_fails_is_not_lost() -> None:
    async def ask_again(answer: asyncio.Future[None]) -> None:
        while True:
            with suppress(OSError):
                async with timeout(20):
                    await answer
            answer = asyncio.Future()

    async def main() -> None:
        answer = asyncio.Future[None]()
        asking = asyncio.ensure_future(ask_again(answer))
        await asyncio.sleep(0)
        answer.set_exception(OSError())
        asking.cancel()
        await asyncio.wait([asking], timeout=20)
        assert asking.cancelled()

    asyncio.run(main())
