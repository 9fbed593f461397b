"""Asks the nodes what their ranks do. A node that does not tell in time holds nothing up.

One look serves all who ask for one while it is under way.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.observe.backtraces import Backtraces
from mpilaunch.head.ranks import Ranks
from mpilaunch.head.tasks import settle
from mpilaunch.job.state import JobState
from mpilaunch.wire.frames import WireError

if TYPE_CHECKING:
    from mpilaunch.head.nodes.link import NodeLink
    from mpilaunch.job.hangs.autopsy import Observed
    from mpilaunch.job.hangs.stacks import Process

LONGEST_LOOK = 3.0
"""Seconds in which the nodes may tell."""


class Seen(NamedTuple):
    """What a look has found: the ranks that ran, those of which their nodes have told nothing in time, and of a rank in which
    Python runs the processes with their stacks, and the report of NCCL, if it was asked and gave one."""

    observed: list[Observed]
    unknown: list[int]
    stacks: dict[int, list[Process]]
    nccl: str


class Looks:
    """Looks at the ranks of one job.

    Attributes:
        backtraces: the C stacks of the ranks, which are asked for apart.

    Args:
        silence: returns the seconds since the last output of a rank, or since its start.
    """

    def __init__(self, daemons: Daemons, ranks: Ranks, state: JobState, silence: Callable[[int], float]) -> None:
        self._daemons, self._ranks, self._state, self._silence = daemons, ranks, state, silence
        self.backtraces = Backtraces(daemons, ranks)
        self._unanswered: Counter[int] = Counter()
        self._awaited: Counter[int] = Counter()
        self._nccl_asked = False
        self._observed: dict[int, Observed] = {}
        self._stacks: dict[int, list[Process]] = {}
        self._nccl = ""
        self._seen: asyncio.Future[Seen] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, *, ask_nccl: bool = False) -> asyncio.Future[Seen]:
        """Ask the nodes, and NCCL on one of them; return what they will have told, LONGEST_LOOK later at the latest."""
        if self._seen is not None and not self._seen.done():
            if ask_nccl and self._awaited and not self._nccl_asked:
                self._nccl_asked = True
                self._ask(min(self._awaited), nccl=True)
            return self._seen
        loop = asyncio.get_running_loop()
        self._seen, self._observed, self._stacks, self._nccl = loop.create_future(), {}, {}, ""
        self._awaited, self._nccl_asked = Counter(), ask_nccl
        living = [index for index in self._daemons.links if self._living(index)]
        for index in living:  # NCCL in any rank reports on all
            self._ask(index, nccl=ask_nccl and index == min(living))
        self._timer = loop.call_later(LONGEST_LOOK if self._awaited else 0.0, self._end)
        return self._seen

    def _ask(self, index: int, *, nccl: bool) -> None:
        self._unanswered[index] += 1
        self._awaited[index] += 1
        self._daemons.links[index].send({"type": "observe", "nccl": nccl})

    def quiet(self) -> float:
        """Return the seconds since the last output of a rank that runs, or since its start; 0 where none runs."""
        running = (rank for rank, state in self._state.states.items() if state == "running")
        return min(map(self._silence, running), default=0.0)

    def close(self) -> None:
        """Stop waiting for nodes."""
        self.backtraces.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._seen is not None:
            self._seen.cancel()

    def take_stack(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Take the stacks of a rank, before what else is observed; raises WireError for another node's."""
        from mpilaunch.job.hangs.stacks import Process  # most jobs end before

        index = link.node.index
        if not self._unanswered[index]:
            raise WireError("'stack' that was not asked for")
        self._ranks.check_rank(message["rank"], index)
        if index in self._awaited:
            self._stacks[message["rank"]] = [Process.of(process) for process in message["processes"]]

    def take_observed(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Take what the ranks of a node do; raises WireError for another node's."""
        from mpilaunch.job.hangs.autopsy import Observed  # most jobs end before
        from mpilaunch.job.hangs.stacks import place_of

        index = link.node.index
        if not self._unanswered[index]:
            raise WireError("'observed' that was not asked for")
        self._unanswered[index] -= 1
        if index not in self._awaited:
            return  # too late
        fenced = {*message.get("fenced", ())}
        for rank, pid, state, cpus, wait, processes, seconds, memory in message["ranks"]:
            self._ranks.check_rank(rank, index)
            if self._state.is_alive(rank):
                silent, read = self._silence(rank), self._stacks.get(rank, [])
                where = (place_of(read), all(process.steady for process in read[:1]), rank in fenced)
                self._observed[rank] = Observed(rank, state, cpus, wait, silent, pid, processes, seconds, memory, *where)
        self._nccl = self._nccl or message.get("nccl", "")
        self._awaited[index] -= 1
        self._awaited = +self._awaited
        if not self._awaited:
            self._end()

    def _living(self, index: int) -> list[int]:
        return [rank for rank in self._ranks.of_node(index) if self._state.states[rank] == "running"]

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        unknown = [rank for index in self._awaited for rank in self._living(index)]
        self._awaited = Counter()
        if self._seen is not None:
            settle(self._seen, Seen(list(self._observed.values()), unknown, self._stacks, self._nccl))
