"""The clocks of --timeout and --hang-timeout: when one strikes, the nodes tell what their ranks do, and then the job ends.

They tell it on request too, and the job continues; and with --stack-on-failure when a rank fails. `Stop` ends the ranks, unless
it has begun before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mpilaunch.errors import ExitCode
from mpilaunch.head.observe.looks import Looks
from mpilaunch.head.output.forward import OutputForwarder
from mpilaunch.head.ranks import Ranks
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState
from mpilaunch.job.verdict import Verdict

if TYPE_CHECKING:
    from mpilaunch.head.observe.looks import Seen

CAUSES = ("timeout", "hang")
"""Causes of a verdict that the clocks give."""
SHORTEST_WATCH = 0.05
"""Seconds between two looks at the output, at least."""


class TimeLimit:
    """The time limits of one job.

    Attributes:
        looks: at the ranks.

    Args:
        ask: asks for the end of the job, with a verdict.
    """

    def __init__(
        self, job: JobSpec, ranks: Ranks, state: JobState, output: OutputForwarder, looks: Looks, ask: Callable[[Verdict], None]
    ) -> None:
        self._deadlines, self._spent, self._run_id = job.deadlines, job.time_spent, job.run_id
        self._ranks, self._state, self._output, self.looks, self._ask = ranks, state, output, looks, ask
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._heard = 0.0
        self._told_of = (*CAUSES, "rank-failed") if job.stack_on_failure else CAUSES
        self._seen: Seen | None = None

    def begin(self) -> None:
        """Start the clocks; earlier attempts count towards the limit of the whole job."""
        if (limit := self._deadlines.timeout) is not None:
            outcome = Verdict(ExitCode.TIMEOUT, "timeout", detail=f"time limit of {limit:g} s exceeded")
            self._timers["timeout"] = asyncio.get_running_loop().call_later(limit - self._spent, self._strike, outcome)
        self.resumed()
        self._watch()

    def close(self) -> None:
        self._stop_clocks()
        self.looks.close()

    def _stop_clocks(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    @property
    def reached(self) -> bool:
        """Whether the job ends, and it has been told what its ranks did."""
        return self._seen is not None

    def resumed(self) -> None:
        """Do not count the silence so far: the ranks were stopped with mpilaunch."""
        self._heard = time.monotonic()

    def show(self, say: Callable[[str], None]) -> None:
        """Tell what the ranks do, in lines."""

        def seen(look: asyncio.Future[Seen]) -> None:
            if not look.cancelled():
                lines, native = self._lines(look.result()), "" if look.result().stacks else " --native, with gdb on the nodes"
                stacks = f"their stacks: mpilaunch stack {self._run_id}{native}"
                for line in [*lines, stacks] if lines else ["no rank runs"]:
                    say(f"    {line}")

        self.looks.begin().add_done_callback(seen)

    def _watch(self) -> None:
        """Wait until all ranks could have been silent for so long, and see whether they have.

        Output that its reader does not take is no silence: the ranks wait for it.
        """
        if (limit := self._deadlines.hang) is None:
            return
        if self._output.held_up:
            self.resumed()
        quiet = min(self.looks.quiet(), time.monotonic() - self._heard)
        if quiet >= limit:
            detail = f"no output of any rank for {quiet:.0f} s: --hang-timeout"
            self._strike(Verdict(ExitCode.TIMEOUT, "hang", detail=detail))
        else:
            later = max(limit - quiet, SHORTEST_WATCH)
            self._timers["hang"] = asyncio.get_running_loop().call_later(later, self._watch)

    def _strike(self, outcome: Verdict) -> None:
        self._stop_clocks()  # the first one counts
        self.look_first(partial(self._ask, outcome), ask_nccl=True)

    def look_first(self, then: Callable[[], None], *, ask_nccl: bool = False) -> None:
        """Have the nodes tell what their ranks do as the job ends, the first time, and call a function afterwards."""

        def seen(look: asyncio.Future[Seen]) -> None:
            if not look.cancelled():
                self._seen = self._seen or look.result()
                then()

        self.looks.begin(ask_nccl=ask_nccl).add_done_callback(seen)

    @property
    def stacks(self) -> dict[int, str]:
        """The stacks of the ranks at that time, of those that the nodes could read."""
        if self._seen is None:
            return {}
        from mpilaunch.job.hangs.stacks import as_text

        return {rank: as_text(processes) for rank, processes in self._seen.stacks.items()}

    @property
    def nccl(self) -> str:
        """The report of NCCL at that time as lines of text, "" without one."""
        if self._seen is None:
            return ""
        from mpilaunch.job.hangs.autopsy import nccl_lines

        return "".join(f"{line}\n" for line in nccl_lines(self._seen.nccl))

    def explain(self, verdict: Verdict) -> Verdict:
        """Return the verdict of a job with what its ranks did when it reached a limit or, if asked, when the first failed."""
        if self._seen is None or verdict.cause not in self._told_of:
            return verdict
        from mpilaunch.job.hangs.stacks import place_in

        places = {each.rank: place_in(self._output.stacks_of(each.rank)) for each in self._seen.observed if not each.place}
        observed = [each._replace(place=places.get(each.rank, each.place)) for each in self._seen.observed]
        lines = self._lines(self._seen._replace(observed=observed))
        if verdict.cause in CAUSES:
            return verdict._replace(detail="\n".join((verdict.detail, *lines)))
        return verdict._replace(others=tuple(lines))

    def _lines(self, seen: Seen) -> list[str]:
        from mpilaunch.job.hangs.autopsy import autopsy  # most jobs end without

        hosts = {rank: self._ranks.node_name(rank) for rank in self._state.states}
        return autopsy(seen.observed, hosts, seen.unknown)
