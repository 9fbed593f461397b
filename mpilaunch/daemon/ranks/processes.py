"""The processes of this node's ranks: which rank each is, whom a signal reaches, and how all are brought to their end.

A rank leads a process group; a group may have members when its leader is gone, and they are the rank's.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from mpilaunch.daemon.ranks import reaper
from mpilaunch.daemon.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable


SHARED_SECONDS = 0.1
"""How long the first signal of a stop waits where a batch system may be sending the same one to all processes of the job."""


class Processes:
    """All that run on this node.

    Attributes:
        ranks: process id -> rank, of those that have not exited.
        stopping: they were told to end.
        got_sigterm: somebody else has sent SIGTERM to them, which is not sent twice.

    Args:
        timers: of the loop; "step" is ours.
        note_memory: is told of processes that are about to be ended.
        all_told: called when the last signal of a stop was sent.
    """

    def __init__(self, timers: Timers, note_memory: Callable[[list[int]], None], all_told: Callable[[], None]) -> None:
        self.ranks: dict[int, int] = {}
        self.stopping = self.got_sigterm = False
        self._timers, self._note_memory, self._all_told = timers, note_memory, all_told
        self._groups: set[int] = set()
        self._steps: list[list[float]] = []
        self._aborts: dict[int, tuple[int, float]] = {}

    def started(self, pid: int, rank: int) -> None:
        """Take note of one more."""
        self.ranks[pid] = rank
        self._groups.add(pid)

    def signal(self, number: int) -> None:
        """Send a signal to every rank."""
        for pid in self.ranks:
            reaper.signal_group(pid, number)

    def abort(self, rank: int, code: int) -> None:
        """End a rank that has called MPI_Abort; the code counts in place of the signal."""
        # What this does to other ranks comes after it: the time is that of the call, and not that of the end.
        self._aborts.setdefault(rank, (code, time.monotonic()))
        for pid, number in self.ranks.items():
            if number == rank:
                self._note_memory([pid])
                reaper.signal_group(pid, signal.SIGKILL)

    def end(self, steps: list[list[float]], shared: bool = False) -> None:
        """Send the first signal, wait, send the next, and at last kill: each step is a signal's number and seconds.

        Args:
            shared: somebody else may be sending the first signal to the ranks now; then it is known in a moment.
        """
        self.stopping = True
        self._steps = [*steps, [signal.SIGKILL, 0.0]]
        if shared and not self.got_sigterm:
            self._timers.set("step", SHARED_SECONDS, self._next_step)
        else:
            self._next_step()

    def _next_step(self) -> None:
        number, wait = self._steps.pop(0)
        # Processes that a signal ends cannot remove the shared memory that MPI has made for them.
        self._note_memory(reaper.descendants())
        # A rank that was a shell may be gone, and what it ran goes on in its group.
        for pid in self.ranks.keys() | reaper.living_groups(self._groups):
            if number != signal.SIGTERM or not self.got_sigterm:
                reaper.signal_group(pid, int(number))
            if number != signal.SIGKILL:
                # A stopped process takes no signal but this one before it goes on.
                reaper.signal_group(pid, signal.SIGCONT)
        if self._steps:
            self._timers.set("step", wait, self._next_step)
        else:
            self._all_told()

    @property
    def ending(self) -> bool:
        """Some were told to end and are not gone, though their rank may be. The end of each is an event."""
        return self.stopping and bool(reaper.living_groups(self._groups))

    @property
    def will_be_told(self) -> bool:
        """Another signal is due, and there is somebody to take it."""
        return bool(self._steps) and self.ending

    def leave(self) -> None:
        """Wait no longer for groups without a rank: what lives on after the last signal cannot be killed."""
        self._groups.clear()

    def how_ended(self, rank: int, status: int) -> tuple[int | None, int | None, float]:
        """Return exit code, or else signal, and time of a rank's end, of which the kernel has said so much."""
        own = None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        code, clock = self._aborts.get(rank, (own, time.monotonic()))
        return code, os.WTERMSIG(status) if code is None else None, clock
