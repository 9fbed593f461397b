"""Signals to mpilaunch while its ranks run, and SIGTERM to a daemon: the job ends, saves, or its ranks get them."""

from __future__ import annotations

import signal
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


class Interrupts:
    """The receiver of `SignalRelay` for one launch; `checkpoints` are those of the job."""

    def __init__(self, job: JobSpec, daemons: Daemons, stop: Stop, say: Callable[[str], None]) -> None:
        self._who = "commands" if job.independent else "ranks"
        self.checkpoints = Checkpoints(job, daemons.send_all, say)
        self._grace, self._daemons, self._stop, self._say = job.deadlines.grace, daemons, stop, say
        self._preempted = False

    def interrupt(self, number: int, times: int) -> bool:
        """End the job: the first signal stops the ranks, the second kills them, the third does not wait for nodes.

        A second SIGTERM has no effect: schedulers and timeout(1) may send two, and promise the ranks the whole grace time.
        """
        detail = f"{signal_name(number)} to mpilaunch"
        preempted, leaving = number == signal.SIGTERM, self._stop.leaving
        outcome = Verdict(128 + number, "preempted" if preempted else "interrupted", detail=detail)
        if times >= SIGNALS_TO_QUIT and not leaving:
            self._stop.quit(outcome)
        elif preempted and not leaving:
            if times == 1:
                self._preempt(detail)
        else:
            from_keyboard = number in (signal.SIGINT, signal.SIGQUIT)
            first = [signal.SIGINT, signal.SIGTERM] if from_keyboard else [signal.SIGTERM]
            if times == 1 and not leaving:
                self._say(f"{detail}: the {self._who} have {self._grace:g} s to end; once more kills them now")
            self._stop.ask(outcome, first if times == 1 else [], again=True)
        return True

    def forward(self, number: int) -> None:
        if not self.checkpoints.takes(number):
            self._daemons.send_all({"type": "signal", "signal": number})

    def take_terminated(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Handle SIGTERM received by a daemon, and perhaps by every process of the job there, like SIGTERM to mpilaunch."""
        self._preempt(f"SIGTERM to the processes on {link.node.name}")

    def _preempt(self, detail: str) -> None:
        """Handle the first SIGTERM to mpilaunch or a daemon; the scheduler may have sent it to every process of the job."""
        if self._preempted or self._stop.leaving:
            return
        self._preempted = True
        outcome = Verdict(128 + signal.SIGTERM, "preempted", detail=detail)
        if not self.checkpoints.save_first(lambda: self._stop.ask(outcome)):
            self._say(f"{detail}: the {self._who} have {self._grace:g} s to end; SIGINT kills them now")
            self._stop.ask(outcome, again=True, shared=True)
