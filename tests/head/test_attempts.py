"""What attempts run between each other: the host discovery script, which an interrupt ends at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

import pytest

from mpilaunch.errors import LaunchError
from mpilaunch.head.attempts import _output_of
from tests.support.launching import children
from tests.support.processes import everything, left_behind

TURNS = 12
"""More turns of the event loop than the start of a process takes."""


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("turns", range(TURNS))
def test_a_script_that_is_cancelled_at_any_turn_leaves_nothing(tmp_path: Path, turns: int, again: bool) -> None:
    begun = tmp_path / "begun"
    before, our_own = everything(), set(children(os.getpid()))

    async def main() -> None:
        asking = asyncio.ensure_future(_output_of(f"sleep 60 & echo >{begun}; wait"))
        for _ in range(turns):
            await asyncio.sleep(0)
        deadline = time.monotonic() + (5 if turns > 3 else 0.2)  # the first turns may come before the start
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.005)  # the loop stands still meanwhile
        asking.cancel()
        if again:
            await asyncio.sleep(0)
            asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        while set(children(os.getpid())) - our_own and time.monotonic() < deadline + 5:
            await asyncio.sleep(0.01)  # cancelled twice, it has killed the process, which the loop reaps in its time

    asyncio.run(main())
    assert left_behind(before) == {}
    assert turns <= 3 or begun.exists()


def test_what_a_script_leaves_running_delays_nothing_and_is_ended() -> None:
    before = everything()
    began = time.monotonic()
    assert asyncio.run(_output_of("sleep 1000 & echo host")) == "host\n"
    assert time.monotonic() - began < 10
    assert left_behind(before) == {}


def test_a_script_that_fails_is_an_error_with_its_exit_code() -> None:
    with pytest.raises(LaunchError, match="'exit 3' ended with exit code 3"):
        asyncio.run(_output_of("exit 3"))
