"""A launch as requests see it: the phase it is in, what its ranks do, and signals to them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from typing import Any

from mpilaunch.head.ending.stop import Stop
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.observe.looks import Looks, Seen
from mpilaunch.head.output.forward import OutputForwarder
from mpilaunch.head.ranks import Ranks
from mpilaunch.hosts.nodeset import name_ranks
from mpilaunch.job.hangs.autopsy import Observed
from mpilaunch.job.hangs.native import Backtrace
from mpilaunch.job.state import JobState

ALIVE = ("running", "drained")
"""States of ranks that run."""
NOT_RUNNING = {"waiting": "not started", "lost": "lost with its node"}
"""What is shown of ranks in these states."""


class RunningJob:
    """One launch, while it runs."""

    def __init__(
        self, daemons: Daemons, ranks: Ranks, state: JobState, output: OutputForwarder, looks: Looks, stop: Stop
    ) -> None:
        self._daemons, self._ranks, self._state = daemons, ranks, state
        self._output, self._looks, self._stop = output, looks, stop

    @property
    def phase(self) -> str:
        """What the job does."""
        if self._stop.begun or self._stop.leaving:
            return "ending"
        return "starting" if any(state == "waiting" for state in self._state.states.values()) else "running"

    @property
    def silent(self) -> float | None:
        """Seconds since the last output of a rank, or since the start; None where none runs."""
        return self._looks.quiet() if self.alive else None

    @property
    def names(self) -> str:
        """Its ranks, as text."""
        return name_ranks(self._state.states)

    @property
    def alive(self) -> list[int]:
        """The ranks that run."""
        return [rank for rank, state in self._state.states.items() if state in ALIVE]

    @property
    def all(self) -> Collection[int]:
        """All its ranks."""
        return self._state.states.keys()

    def has(self, rank: int) -> bool:
        """Return whether there is such a rank."""
        return rank in self._state.states

    def signal(self, number: int, ranks: Collection[int]) -> None:
        """Send a signal to ranks that run."""
        of_node: defaultdict[int, list[int]] = defaultdict(list)
        for rank in ranks:
            of_node[self._ranks.place(rank).node].append(rank)
        for index, chosen in of_node.items():
            self._daemons.links[index].send({"type": "signal", "signal": number, "ranks": chosen})

    async def look(self, *, ask_nccl: bool = False) -> Seen:
        """Look at the ranks."""
        return await asyncio.shield(self._looks.begin(ask_nccl=ask_nccl))

    async def backtraces(self, ranks: Collection[int]) -> dict[int, Backtrace]:
        """Read the C stacks of those of these ranks that run."""
        return await self._looks.backtraces.read([rank for rank in self.alive if rank in ranks])

    def rows(self, look: Seen) -> list[dict[str, Any]]:
        """Return a row for each rank, with what it does."""
        seen = {each.rank: each for each in look.observed}
        return [self._row(rank, state, seen.get(rank), look) for rank, state in self._state.states.items()]

    def _row(self, rank: int, state: str, seen: Observed | None, look: Seen) -> dict[str, Any]:
        end = self._state.ends.get(rank)
        how = NOT_RUNNING.get(state, "no answer from the daemon" if rank in look.unknown else "running")
        if seen is not None:
            how = seen.words
        elif end is not None:
            how = end.description
        started = state != "waiting"
        return {
            "rank": rank,
            "host": self._ranks.node_name(rank),
            "how": how,
            "alive": state in ALIVE,
            "silent": self._output.silence(rank) if started else None,
            "last_line": self._output.last_line(rank) if started else "",
            "gpus": list(self._ranks.bindings[rank].gpus) if rank in self._ranks.bindings else [],
            "pid": seen and seen.pid,
            "cpus": seen and seen.cpus,
            "cpu_seconds": seen and seen.seconds,
            "memory": seen and seen.memory,
        }
