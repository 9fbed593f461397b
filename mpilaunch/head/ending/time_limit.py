"""The clock of --timeout: when it strikes, the nodes tell what their ranks do, and then the job ends.

`Stop` ends the ranks, unless it has begun before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mpilaunch.errors import ExitCode
from mpilaunch.head.observe.looks import Looks
from mpilaunch.head.ranks import Ranks
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState
from mpilaunch.job.verdict import Verdict

if TYPE_CHECKING:
    from mpilaunch.head.observe.looks import Seen


class TimeLimit:
    """The time limit of one job.

    Attributes:
        reached: it is over, and the job ends for it.
        looks: at the ranks.

    Args:
        ask: asks for the end of the job, with a verdict.
    """

    def __init__(self, job: JobSpec, ranks: Ranks, state: JobState, looks: Looks, ask: Callable[[Verdict], None]) -> None:
        self._limit, self._spent = job.deadlines.timeout, job.time_spent
        self._ranks, self._state, self.looks, self._ask = ranks, state, looks, ask
        self._timer: asyncio.TimerHandle | None = None
        self.reached = False
        self._seen: Seen | None = None

    def begin(self) -> None:
        """Start the clock; earlier attempts count towards the limit."""
        if self._limit is not None:
            self._timer = asyncio.get_running_loop().call_later(self._limit - self._spent, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.looks.close()

    def _look(self) -> None:
        self.looks.begin().add_done_callback(self._end)

    def _end(self, seen: asyncio.Future[Seen]) -> None:
        if not seen.cancelled():
            self.reached, self._seen = True, seen.result()
            self._ask(Verdict(ExitCode.TIMEOUT, "timeout", detail=f"time limit of {self._limit:g} s exceeded"))

    def explain(self, verdict: Verdict, last_lines: Callable[[int], Sequence[bytes]]) -> Verdict:
        """Return the verdict of a job that reached its limit with what the ranks did then.

        Args:
            last_lines: returns the end of a rank's stderr, in which its stacks are.
        """
        from mpilaunch.job.hangs.autopsy import autopsy
        from mpilaunch.job.hangs.stacks import place_in

        if self._seen is None:
            return verdict
        observed, unknown = self._seen
        hosts = {rank: self._ranks.node_name(rank) for rank in self._state.states}
        places = {each.rank: place_in(b"\n".join(last_lines(each.rank))) for each in observed}
        return verdict._replace(detail="\n".join((verdict.detail, *autopsy(observed, hosts, unknown, places))))
