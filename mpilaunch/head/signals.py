"""Signals to mpilaunch: to end the job, or to be passed on to every rank.

A signal becomes an event of the loop; a table says what it means. Stopping (Ctrl-Z) stops the ranks first and then us.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol

from mpilaunch.errors import LaunchError
from mpilaunch.jobstate import signal_name

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FORWARDED = {
    signal.SIGUSR1: signal.SIGUSR1,
    signal.SIGUSR2: signal.SIGUSR2,
    # A rank leads a session without a terminal, where the kernel discards SIGTSTP.
    signal.SIGTSTP: signal.SIGSTOP,
    signal.SIGCONT: signal.SIGCONT,
}
"""Signal to mpilaunch, and the one that the ranks get."""


class Receiver(Protocol):
    """Who acts on signals."""

    def interrupt(self, number: int, times: int) -> None:
        """A signal that asks for the end came, for the `times`-th time, counting all of them."""

    def forward(self, number: int) -> None:
        """Send a signal to every rank."""


class SignalRelay:
    """Take our signals for as long as the `with` block lasts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, receiver: Receiver) -> None:
        self._loop = loop
        self._receiver = receiver
        self._starting: asyncio.Task[None] | None = None
        self._interrupts = 0
        self._cancelled_by = 0

    def __enter__(self) -> SignalRelay:
        for number in ENDING:
            # nohup: who starts us with a signal ignored wants it ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._end, number)
        for number, sent in FORWARDED.items():
            self._loop.add_signal_handler(number, self._forward, number, sent)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number in (*ENDING, *FORWARDED):
            self._loop.remove_signal_handler(number)

    async def until_interrupted(self, starting: Coroutine[Any, Any, None]) -> None:
        """Await the start of a job; a signal cancels it, and then this raises LaunchError."""
        self._starting = self._loop.create_task(starting)
        try:
            await self._starting
        except asyncio.CancelledError:
            if not self._cancelled_by:
                raise
            name = signal_name(self._cancelled_by)
            message = f"{name} during the start: no rank was started"
            raise LaunchError("interrupted", message, exit_code=128 + self._cancelled_by) from None
        finally:
            self._starting = None

    def _end(self, number: int) -> None:
        self._interrupts += 1
        if self._starting is None:
            self._receiver.interrupt(number, self._interrupts)
        else:
            self._cancelled_by = number
            self._starting.cancel()

    def _forward(self, number: int, sent: int) -> None:
        if self._starting is None:
            self._receiver.forward(sent)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
