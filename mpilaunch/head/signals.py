"""Signals sent to mpilaunch: some end the job, others are forwarded to every rank.

Each signal becomes an event of the loop. The third one that asks for the end acts outside it too: where the loop does not take
it in time, whatever holds the loop, the process ends. SIGTSTP (Ctrl-Z) stops the ranks first and then mpilaunch itself.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Callable, Coroutine
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Protocol

from mpilaunch.errors import LaunchError
from mpilaunch.job.state import signal_name

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
SIGNALS_TO_QUIT = 3
"""Number of signals after which mpilaunch ends without waiting for any node."""
HELD_SECONDS = 2.0
"""Seconds that the loop has to take such a signal."""
FORWARDED = {
    signal.SIGUSR1: signal.SIGUSR1,
    signal.SIGUSR2: signal.SIGUSR2,
    # A rank leads a session without a terminal, where the kernel discards SIGTSTP.
    signal.SIGTSTP: signal.SIGSTOP,
    signal.SIGCONT: signal.SIGCONT,
}
"""Signal that mpilaunch receives -> signal that is sent to the ranks."""


class Receiver(Protocol):
    """Acts on signals; implemented by a launch."""

    def interrupt(self, number: int, times: int) -> bool:
        """Handle a signal that asks for the end of the job; return False if it asked for the state only, and does not count.

        Args:
            times: the number of such signals so far that count, with this one.
        """

    def stop(self, detail: str, *, now: bool) -> None:
        """End the job on a request, told as `detail`; `now` kills the ranks at once."""

    def forward(self, number: int) -> None:
        """Send a signal to every rank."""


class SignalRelay:
    """Context manager that handles mpilaunch's signals inside its `with` block, and passes them to the receiver.

    Without a receiver, a signal that asks for the end cancels the next `until_interrupted`.

    Attributes:
        ended_by: what has asked for the end, or "".
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, receiver: Receiver | None = None) -> None:
        self._loop = loop
        self.receiver = receiver
        self._starting: asyncio.Task[None] | None = None
        self._interrupts = self._uncounted = self._overdue = 0
        self.ended_by = ""
        self._cancelled = ("", 0)
        self._untold: Callable[[Receiver], None] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SignalRelay:
        # A signal that was ignored when mpilaunch started stays ignored (nohup).
        ending = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.getsignal(number) for number in (*ending, *FORWARDED, signal.SIGALRM)}
        for number in FORWARDED:
            self._loop.add_signal_handler(number, self._forward, number)
        for number in ending:
            signal.signal(number, self._received)
        signal.signal(signal.SIGALRM, self._held)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            self._loop.remove_signal_handler(number)
            signal.signal(number, handler)

    async def until_interrupted(self, starting: Coroutine[Any, Any, None]) -> None:
        """Await the start of a job; raises LaunchError when a signal that asks for the end cancels it."""
        self._starting = self._loop.create_task(starting)
        if self.ended_by:
            self._starting.cancel()
        try:
            await self._starting
        except asyncio.CancelledError:
            if not self.ended_by:
                raise
            reference, number = self._cancelled
            message = f"{self.ended_by} during the start: no rank was started"
            raise LaunchError(reference, message, exit_code=128 + number) from None
        finally:
            self._starting, untold, self._untold = None, self._untold, None
        # It had been done already, or a coroutine has swallowed the cancellation, as `mpilaunch.asyncio_timeouts` may with
        # Python 3.10.
        if untold is not None and self.receiver is not None:
            untold(self.receiver)

    def stop(self, detail: str, *, now: bool = False) -> None:
        """End the job on a request that is no signal, told as `detail`; `now` kills its ranks at once."""
        self._ask(detail, "interrupted", signal.SIGTERM, lambda receiver: receiver.stop(detail, now=now))

    def _received(self, number: int, frame: FrameType | None) -> None:
        """Count a signal that asks for the end, between any two instructions of Python, and let the loop act on it."""
        self._interrupts += 1
        if self._interrupts - self._uncounted >= SIGNALS_TO_QUIT:
            self._overdue = number
            if not signal.getitimer(signal.ITIMER_REAL)[0]:  # further signals postpone nothing
                signal.setitimer(signal.ITIMER_REAL, HELD_SECONDS)
        self._loop.call_soon_threadsafe(self._end, number, self._interrupts)

    def _held(self, number: int, frame: FrameType | None) -> None:
        """End the process: the daemons see the end of their connections, and end the ranks."""
        text = f"mpilaunch: {signal_name(self._overdue)}: ended at once: the launch has not reacted for {HELD_SECONDS:g} s\n"
        try:
            if select.select([], [2], [], 0)[1]:
                os.write(2, text.encode())
        finally:
            os._exit(128 + self._overdue)

    def _end(self, number: int, times: int) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        reference = "preempted" if number == signal.SIGTERM else "interrupted"
        tell = partial(self._interrupt, number=number, times=times)
        self._ask(f"{signal_name(number)} to mpilaunch", reference, number, tell)

    def _interrupt(self, receiver: Receiver, number: int, times: int) -> None:
        # The next signal may have come, and been counted, before this one is handled.
        if not receiver.interrupt(number, times - self._uncounted):
            self._uncounted, self.ended_by = self._uncounted + 1, ""

    def _ask(self, ended_by: str, reference: str, number: int, tell: Callable[[Receiver], None]) -> None:
        """Cancel the start that is under way, or else tell the receiver; without one, the next start is cancelled."""
        self.ended_by, self._cancelled = ended_by, (reference, number)
        if self._starting is not None:
            self._untold = tell
            self._starting.cancel()
        elif self.receiver is not None:
            tell(self.receiver)

    def _forward(self, number: signal.Signals) -> None:
        if self._starting is None and self.receiver is not None:
            self.receiver.forward(FORWARDED[number])
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
