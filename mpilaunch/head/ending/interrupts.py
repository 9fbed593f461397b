"""Signals to mpilaunch while its ranks run, and SIGTERM to a daemon: the job ends, saves, or its ranks get them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

from mpilaunch.head.checkpoints import Checkpoints
from mpilaunch.head.ending.stop import Stop
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.signals import SIGNALS_TO_QUIT
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import signal_name
from mpilaunch.job.verdict import Verdict

SOON = 2.0
"""Seconds within which a second SIGQUIT ends the job."""


class Interrupts:
    """The receiver of `SignalRelay` for one launch; `checkpoints` are those of the job.

    Args:
        say: prints a note.
        tell: prints a line that the user has asked for.
    """

    def __init__(
        self, job: JobSpec, daemons: Daemons, stop: Stop, say: Callable[[str], None], tell: Callable[[str], None]
    ) -> None:
        self._independent, self._tell, self._shown = job.independent, tell, -SOON
        self._who = "commands" if job.independent else "ranks"
        self.checkpoints = Checkpoints(job, daemons.send_all, say)
        self._grace, self._daemons, self._stop, self._say = job.deadlines.grace, daemons, stop, say
        self._asked = False

    def interrupt(self, number: int, times: int) -> bool:
        """End the job: the first signal stops the ranks, the second kills them, the third does not wait for nodes.

        A second SIGTERM has no effect: schedulers and timeout(1) may send two, and promise the ranks the whole grace time.
        The first SIGQUIT only shows what the ranks do, as a JVM does it.
        """
        if number == signal.SIGQUIT and times == 1 and self._shows():
            return False
        detail = f"{signal_name(number)} to mpilaunch"
        preempted, leaving = number == signal.SIGTERM, self._stop.leaving
        outcome = Verdict(128 + number, "preempted" if preempted else "interrupted", detail=detail)
        if times >= SIGNALS_TO_QUIT and not leaving:
            self._stop.quit(outcome)
        elif preempted and not leaving:
            if times == 1:
                self._save_and_end(detail, "preempted", shared=True)
        else:
            from_keyboard = number in (signal.SIGINT, signal.SIGQUIT)
            first = [signal.SIGINT, signal.SIGTERM] if from_keyboard else [signal.SIGTERM]
            if times == 1 and not leaving:
                self._say(f"{detail}: the {self._who} have {self._grace:g} s to end; once more kills them now")
            self._stop.ask(outcome, first if times == 1 else [], again=True)
        return True

    def _shows(self) -> bool:
        """Show what the ranks do, unless that was done just before, or the job ends already; return whether it is shown."""
        now = time.monotonic()
        if self._independent or self._stop.begun or self._stop.leaving or now - self._shown < SOON:
            return False
        self._shown = now
        self._tell(f"SIGQUIT to mpilaunch: what the ranks do (once more within {SOON:g} s ends the job):")
        self._stop.limit.show(self._tell)
        return True

    def stop(self, detail: str, *, now: bool) -> None:
        """End the job as the first SIGTERM does, or kill its ranks now."""
        if now:
            self._stop.ask(Verdict(128 + signal.SIGTERM, "interrupted", detail=detail), [], again=True)
        else:
            self._save_and_end(detail, "interrupted", shared=False)

    def forward(self, number: int) -> None:
        if number == signal.SIGCONT:
            self._stop.limit.resumed()
        if not self.checkpoints.takes(number):
            self._daemons.send_all({"type": "signal", "signal": number})

    def take_terminated(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Handle SIGTERM received by a daemon, and perhaps by every process of the job there, like SIGTERM to mpilaunch."""
        self._save_and_end(f"SIGTERM to the processes on {link.node.name}", "preempted", shared=True)

    def _save_and_end(self, detail: str, cause: str, *, shared: bool) -> None:
        """Handle the first SIGTERM to mpilaunch or a daemon, or a request; the ranks save first, where they can.

        Args:
            shared: a scheduler may have sent the signal to every process of the job.
        """
        if self._asked or self._stop.leaving:
            return
        self._asked = True
        outcome = Verdict(128 + signal.SIGTERM, cause, detail=detail)
        if self.checkpoints.save_first(detail, lambda: self._stop.ask(outcome)):
            self._stop.expect(outcome)
        else:
            self._say(f"{detail}: the {self._who} have {self._grace:g} s to end; SIGINT kills them now")
            self._stop.ask(outcome, again=True, shared=shared)
