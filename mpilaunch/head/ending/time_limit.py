"""The clock of --timeout: when it strikes, the nodes tell what their ranks do, and then the job ends.

A node that does not tell in time holds nothing up. `Stop` ends the ranks, unless it has begun before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mpilaunch.errors import ExitCode
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.ranks import Ranks
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState
from mpilaunch.job.verdict import Verdict
from mpilaunch.wire.frames import WireError

if TYPE_CHECKING:
    from mpilaunch.head.nodes.link import NodeLink
    from mpilaunch.job.hangs.autopsy import Observed

LONGEST_LOOK = 3.0
"""Seconds after the limit in which the nodes may tell."""


class TimeLimit:
    """The time limit of one job.

    Attributes:
        reached: it is over, and the job ends for it.

    Args:
        silence: returns the seconds since the last output of a rank, or since its start.
        ask: asks for the end of the job, with a verdict.
    """

    def __init__(
        self,
        job: JobSpec,
        daemons: Daemons,
        ranks: Ranks,
        state: JobState,
        silence: Callable[[int], float],
        ask: Callable[[Verdict], None],
    ) -> None:
        self._limit, self._spent = job.deadlines.timeout, job.time_spent
        self._daemons, self._ranks, self._state, self._silence, self._ask = daemons, ranks, state, silence, ask
        self._timer: asyncio.TimerHandle | None = None
        self.reached = False
        self._asked: set[int] = set()
        self._awaited: set[int] = set()
        self._observed: dict[int, Observed] = {}
        self._unknown: list[int] = []

    def begin(self) -> None:
        """Start the clock; earlier attempts count towards the limit."""
        if self._limit is not None:
            self._timer = asyncio.get_running_loop().call_later(self._limit - self._spent, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def take_observed(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Take what the ranks of a node do; raises WireError for another node's."""
        from mpilaunch.job.hangs.autopsy import Observed  # most jobs end before

        index = link.node.index
        if index not in self._asked:
            raise WireError("'observed' that was not asked for")
        self._asked.discard(index)
        if index not in self._awaited:
            return  # too late
        for rank, _pid, state, cpus, wait, _processes in message["ranks"]:
            self._ranks.check_rank(rank, index)
            if self._state.is_alive(rank):
                self._observed[rank] = Observed(rank, state, cpus, wait, self._silence(rank))
        self._awaited.discard(index)
        if not self._awaited:
            self._end()

    def _look(self) -> None:
        self._asked = {index for index in self._daemons.links if self._living(index)}
        self._awaited = set(self._asked)
        for index in self._awaited:
            self._daemons.links[index].send({"type": "observe"})
        self._timer = asyncio.get_running_loop().call_later(LONGEST_LOOK if self._awaited else 0.0, self._end)

    def _living(self, index: int) -> list[int]:
        return [rank for rank in self._ranks.of_node(index) if self._state.states[rank] == "running"]

    def _end(self) -> None:
        self.close()
        self.reached = True
        self._unknown = [rank for index in self._awaited for rank in self._living(index)]
        self._awaited = set()
        self._ask(Verdict(ExitCode.TIMEOUT, "timeout", detail=f"time limit of {self._limit:g} s exceeded"))

    def explain(self, verdict: Verdict, last_lines: Callable[[int], Sequence[bytes]]) -> Verdict:
        """Return the verdict of a job that reached its limit with what the ranks did then.

        Args:
            last_lines: returns the end of a rank's stderr, in which its stacks are.
        """
        from mpilaunch.job.hangs.autopsy import autopsy
        from mpilaunch.job.hangs.stacks import place_in

        hosts = {rank: self._ranks.node_name(rank) for rank in self._state.states}
        places = {rank: place_in(b"\n".join(last_lines(rank))) for rank in self._observed}
        lines = autopsy(list(self._observed.values()), hosts, self._unknown, places)
        return verdict._replace(detail="\n".join((verdict.detail, *lines)))
