"""Tests of running a program in the event loop, and of waiting for a descriptor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from typing import Any

import pytest

from mpilaunch.agent import AgentFailure
from mpilaunch_agents.capture import capture, readable


def test_the_output_of_a_program_is_captured() -> None:
    text = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    assert asyncio.run(capture([sys.executable, "-c", text])) == (3, "out\n", "err\n")


def test_a_program_that_closes_its_output_and_runs_on_holds_nothing() -> None:
    async def main() -> None:
        running = asyncio.ensure_future(capture(["sh", "-c", "exec >&- 2>&-; sleep 60"]))
        _, pending = await asyncio.wait([running], timeout=0.3)
        assert pending == {running}
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 30


def test_a_program_that_cannot_be_killed_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = list[int]()

    def refuse(pid: int, number: int) -> None:
        killed.append(pid)
        raise PermissionError

    async def main() -> None:
        running = asyncio.ensure_future(capture(["sleep", "60"]))
        await asyncio.sleep(0.2)
        with monkeypatch.context() as patched:
            patched.setattr(os, "killpg", refuse)
            running.cancel()
            await asyncio.wait([running], timeout=5)
        assert running.cancelled()

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 30
    os.killpg(killed[0], signal.SIGKILL)
    os.waitpid(killed[0], 0)


def test_a_program_that_is_missing_is_named() -> None:
    with pytest.raises(AgentFailure, match="/no/such/program: No such file or directory"):
        asyncio.run(capture(["/no/such/program"]))


def test_a_wait_that_is_cancelled_in_the_turn_in_which_its_descriptor_becomes_readable_is_no_fault() -> None:
    faults: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: faults.append(context))
        source, target = os.pipe()
        waiting = asyncio.ensure_future(readable(source))
        await asyncio.sleep(0)  # the descriptor is registered
        os.write(target, b"x")
        loop.call_soon(waiting.cancel)  # stands before the reader in the next turn
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)
        os.close(source)
        os.close(target)

    asyncio.run(main())
    assert faults == []
