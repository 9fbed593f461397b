"""The processes of this node's ranks: their signals, and the steps that end them.

A rank leads a process group. Members that outlive their leader still belong to the rank.
"""

from __future__ import annotations

import os
import signal
import time

from mpilaunch.daemon.poller import Timers
from mpilaunch.daemon.ranks import reaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from mpilaunch.daemon.observe.observations import Observations
    from mpilaunch.daemon.observe.stacks import Stacks
    from mpilaunch.daemon.poller import Poller


STACK_SECONDS, STACK_LOOK = 1.0, 0.02
"""Seconds in which processes write their stacks and end, before the first signal of a stop, and between looks at them."""
SHARED_SECONDS = 0.1
"""Delay of a stop's first signal, and of the end of a rank by SIGTERM, when a batch system may be sending the same one to all
processes of the job."""


class Processes:
    """The ranks of this node that have been started.

    Attributes:
        ranks: process id -> rank, of those that have not exited.
        independent: what ended ranks have left behind is not touched, and goes to init and not to this process.
        outlive_head: they are not ended when the head is lost.
        got_sigterm: whether another process has sent them SIGTERM, which is not sent twice.
        uninvited: messages of ranks that a SIGTERM of another process has ended, for SHARED_SECONDS.

    Args:
        timers: of the loop; this object uses the name "step".
        note_memory: called with processes before they are signalled.
        all_sent: called after the last signal of a stop.
    """

    def __init__(self, timers: Timers, note_memory: Callable[[list[int]], None], all_sent: Callable[[], None]) -> None:
        self.ranks: dict[int, int] = {}
        self.uninvited: list[dict[str, Any]] = []
        self.stopping = self.got_sigterm = self.independent = self.outlive_head = False
        self._timers, self._note_memory, self._all_sent = timers, note_memory, all_sent
        self._groups: set[int] = set()
        self._steps: list[list[float]] = []
        self._aborts: dict[int, tuple[int, float]] = {}
        self._observations: Observations | None = None
        self._reached: set[int] = set()

    @property
    def stopped(self) -> bool:
        """Whether ranks that end now were asked to: by the head, or by a SIGTERM to every process of a job."""
        return self.stopping or (self.got_sigterm and not self.outlive_head)

    def started(self, pid: int, rank: int) -> None:
        self.ranks[pid] = rank
        self._groups.add(pid)

    def signal(self, number: int, ranks: Sequence[int] | None = None) -> None:
        """Send a signal to the processes of these ranks, or of all."""
        chosen = None if ranks is None else set(ranks)
        for pid, rank in self.ranks.items():
            if chosen is None or rank in chosen:
                reaper.signal_group(pid, number)

    def signal_catchers(self, number: int, again: bool) -> None:
        """Send a signal to the processes that catch it; `again`: only to those that were not reached before."""
        if not again:
            self._reached.clear()
        reaper.signal_catchers(number, self._reached)

    def abort(self, rank: int, code: int) -> None:
        """Kill a rank that has called MPI_Abort; its exit is reported with this code."""
        # The time is that of the call, so that failures of other ranks that follow from it are later.
        self._aborts.setdefault(rank, (code, time.monotonic()))
        for pid, number in self.ranks.items():
            if number == rank:
                self._note_memory([pid])
                reaper.signal_group(pid, signal.SIGKILL)

    def observations(self, poller: Poller, send: Callable[[dict[str, Any]], None]) -> Observations:
        """Return what looks at them for the head."""
        from mpilaunch.daemon.observe.observations import Observations  # most jobs end before

        self._observations = self._observations or Observations(poller, self._timers, send)
        return self._observations

    def end_observations(self) -> None:
        if self._observations is not None:
            self._observations.close()

    def end(self, steps: list[list[float]], shared: bool = False, stacks: bool = False) -> None:
        """Send the signal of each step, wait its seconds after each, and at last kill.

        If another process may be sending the first signal to the ranks too (`shared`), wait a moment to see it. With `stacks`,
        processes of Python whose stacks could not be read write them first.
        """
        if self.independent and not self.stopping:
            self._groups = set(self.ranks)
        self.stopping = True
        self._steps = [*steps, [signal.SIGKILL, 0.0]]
        if stacks:
            from mpilaunch.daemon.observe.stacks import Stacks  # most jobs end by themselves

            unread = self.ranks if self._observations is None else self._observations.unread(self.ranks)
            self._ask_stacks(Stacks(unread), time.monotonic() + STACK_SECONDS)
        elif shared and not self.got_sigterm:
            self._timers.set("step", SHARED_SECONDS, self._next_step)
        else:
            self._next_step()

    def _ask_stacks(self, stacks: Stacks, until: float) -> None:
        """Wait for the stacks of all processes that write theirs, then begin with the steps."""
        if stacks.ask() and time.monotonic() < until:
            self._timers.set("step", STACK_LOOK, lambda: self._ask_stacks(stacks, until))
        else:
            self._next_step()

    def _next_step(self) -> None:
        number, wait = self._steps.pop(0)
        # A process that a signal ends does not remove the shared memory of its MPI library.
        self._note_memory(reaper.descendants())
        # A rank that was a shell may have exited while its children run on in its group.
        for pid in self.ranks.keys() | self._living_groups():
            if number != signal.SIGTERM or not self.got_sigterm:
                reaper.signal_group(pid, int(number))
            if number != signal.SIGKILL:
                # A stopped process handles other signals only after this one.
                reaper.signal_group(pid, signal.SIGCONT)
        if self._steps:
            self._timers.set("step", wait, self._next_step)
        else:
            self._all_sent()

    def _living_groups(self) -> set[int]:
        """Return the groups that have members; one of an independent command that has none is not looked at again."""
        if not self.independent:
            return reaper.living_groups(self._groups)
        self._groups = {group for group in self._groups if reaper.group_lives(group)}
        return self._groups

    @property
    def ending(self) -> bool:
        """Whether a stop has begun and processes remain; the rank itself may have exited."""
        return self.stopping and bool(self._living_groups())

    @property
    def signals_left(self) -> bool:
        """Whether another signal is due, and processes remain that can get it."""
        return bool(self._steps) and self.ending

    def forget_groups(self) -> None:
        """Do not wait for groups any more: a process that survives the last signal cannot be killed."""
        self._groups.clear()

    def end_of(self, rank: int, status: int) -> tuple[int | None, int | None, float]:
        """Return exit code or signal, and time, of a rank that ended with this wait status."""
        own = None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        code, clock = self._aborts.get(rank, (own, time.monotonic()))
        return code, os.WTERMSIG(status) if code is None else None, clock
