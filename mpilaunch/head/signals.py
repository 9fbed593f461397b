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
from mpilaunch.job.state import signal_name

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


def _become_a_byte(number: int, frame: object) -> None:
    """The interpreter has written it to the pipe already."""


class SignalRelay:
    """Take our signals for as long as the `with` block lasts.

    Attributes:
        receiver: who gets them, if anybody. A signal that asks for the end is also the end of the next `until_interrupted`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, receiver: Receiver | None = None) -> None:
        self._loop = loop
        self.receiver = receiver
        self._starting: asyncio.Task[None] | None = None
        self._interrupts = 0
        self._cancelled_by = 0
        self._read = self._write = -1
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SignalRelay:
        # Not `add_signal_handler`, which loads `inspect` to find out what it was given.
        self._read, self._write = os.pipe()
        for descriptor in (self._read, self._write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._loop.add_reader(self._read, self._take)
        # nohup: who starts us with a signal ignored wants it ignored.
        taken = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, _become_a_byte) for number in (*taken, *FORWARDED)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        self._loop.remove_reader(self._read)
        os.close(self._read)
        os.close(self._write)

    async def until_interrupted(self, starting: Coroutine[Any, Any, None]) -> None:
        """Await the start of a job; a signal cancels it, and then this raises LaunchError."""
        self._starting = self._loop.create_task(starting)
        if self._cancelled_by:
            self._starting.cancel()
        try:
            await self._starting
        except asyncio.CancelledError:
            if not self._cancelled_by:
                raise
            name = signal_name(self._cancelled_by)
            message = f"{name} during the start: no rank was started"
            preempted = self._cancelled_by == signal.SIGTERM
            exit_code = 128 + self._cancelled_by
            raise LaunchError("preempted" if preempted else "interrupted", message, exit_code=exit_code) from None
        finally:
            self._starting = None

    def _take(self) -> None:
        for number in map(signal.Signals, os.read(self._read, 4096)):
            if number in FORWARDED:
                self._forward(number, FORWARDED[number])
            elif number in self._before:
                self._end(number)

    def _end(self, number: int) -> None:
        self._interrupts += 1
        self._cancelled_by = number
        if self._starting is not None:
            self._starting.cancel()
        elif self.receiver is not None:
            self.receiver.interrupt(number, self._interrupts)

    def _forward(self, number: int, sent: int) -> None:
        if self._starting is None and self.receiver is not None:
            self.receiver.forward(sent)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
