"""Runs a program in the event loop and captures its output; waits KILL_SECONDS at most for one that its caller has given up."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from mpilaunch.agent import AgentFailure
from mpilaunch_agents.child import DISMISS_POLL_SECONDS, Child

KILL_SECONDS = 0.2
"""Seconds that a killed program has to exit; the loop waits for it, so that nothing is left of it."""


async def capture(argv: Sequence[str]) -> tuple[int, str, str]:
    """Run a program without input; return its exit code, stdout and stderr; raises AgentFailure. Cancelling kills it."""
    try:
        child = Child(argv)
    except OSError as error:
        raise AgentFailure("agent-missing", f"{argv[0]}: {error.strerror}") from error
    os.close(child.stdin)
    try:
        output, errors = await asyncio.gather(_read(child.stdout), _read(child.stderr))
        await _exit_of(child)  # it may have closed its pipes before
        return child.wait(), output, errors
    except BaseException:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        until = time.monotonic() + KILL_SECONDS
        while not child.ended and time.monotonic() < until:
            time.sleep(DISMISS_POLL_SECONDS)
        if child.ended:  # else the kernel holds it, or it is another user's
            child.wait()
        raise
    finally:
        os.close(child.stdout)
        os.close(child.stderr)


async def readable(source: int | socket.socket) -> None:
    """Wait until a descriptor or socket is readable."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def settle() -> None:
        if not ready.done():  # cancelled in the same turn of the loop
            ready.set_result(None)

    loop.add_reader(source, settle)
    try:
        await ready
    finally:
        loop.remove_reader(source)


async def _exit_of(child: Child) -> None:
    """Wait until a child has exited; before Linux 5.3 the caller's wait for it holds the loop."""
    try:
        descriptor = os.pidfd_open(child.pid)
    except (AttributeError, OSError):
        return
    try:
        await readable(descriptor)
    finally:
        os.close(descriptor)


async def _read(descriptor: int) -> str:
    """Return all output of a pipe."""
    data = bytearray()
    while True:
        await readable(descriptor)
        block = os.read(descriptor, 1 << 16)
        if not block:
            return data.decode(errors="surrogateescape")
        data += block
