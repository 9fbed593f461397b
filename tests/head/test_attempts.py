"""What attempts run between each other: the host discovery script, which an interrupt ends at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from mpilaunch.head.attempts import _output_of
from tests.support.processes import everything, left_behind

TURNS = 12
"""More turns of the event loop than the start of a process takes."""


@pytest.mark.parametrize("turns", range(TURNS))
def test_a_script_that_is_cancelled_at_any_turn_leaves_nothing(tmp_path: Path, turns: int) -> None:
    begun = tmp_path / "begun"
    before = everything()

    async def main() -> None:
        asking = asyncio.ensure_future(_output_of(f"sleep 60 & echo >{begun}; wait"))
        for _ in range(turns):
            await asyncio.sleep(0)
        deadline = time.monotonic() + (5 if turns > 3 else 0.2)  # the first turns may come before the start
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.005)  # the loop stands still meanwhile
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking

    asyncio.run(main())
    assert left_behind(before) == {}
    assert turns <= 3 or begun.exists()
