"""Serves the head's requests to tell what the ranks do: two looks at what the kernel knows, and their stacks in between.

C stacks are read on a request of their own: they take longer, and a debugger stops the ranks for it.
"""

from __future__ import annotations

import time

from mpilaunch.daemon.observe.kernel import BETWEEN, Look
from mpilaunch.daemon.observe.reading import Reading
from mpilaunch.daemon.observe.workers import worker_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from mpilaunch.daemon.observe.native import Backtraces
    from mpilaunch.daemon.poller import Poller, Timers

READ_SECONDS, READ_LOOK = 2.0, 0.02
"""Seconds that reading the stacks may take, and between looks whether it is done. The head waits for three."""


class Observations:
    """The looks at the ranks of this node; one that is not done when the next begins is given up.

    Args:
        timers: of the loop; this object uses the names "observe" and "backtrace".
        send: sends a message to the head.
    """

    def __init__(self, poller: Poller, timers: Timers, send: Callable[[dict[str, Any]], None]) -> None:
        self._poller, self._timers, self._send = poller, timers, send
        self._reading: Reading | None = None
        self._backtraces: Backtraces | None = None

    def begin(self, ranks: dict[int, int], fenced: Callable[[], list[int]], *, ask_nccl: bool) -> None:
        """Look at the ranks now, and once more; then tell the head, with the report of NCCL if asked.

        Args:
            ranks: process id -> rank.
            fenced: returns the ranks that wait in a fence of MPI.
        """
        look, until = Look(ranks), time.monotonic() + READ_SECONDS
        if self._reading is None or self._reading.is_done:
            self._reading = Reading(ranks, ask_nccl=ask_nccl)
        self._timers.set("observe", BETWEEN, lambda: self._tell(look, fenced, until))

    def backtrace(self, pids: dict[int, int | None]) -> None:
        """Read the C stacks of these processes, by rank, None for one that has ended, and tell the head of each."""
        from mpilaunch.daemon.observe.native import Backtraces  # few looks ask for them

        self._backtraces = self._backtraces or Backtraces(self._poller, self._timers, self._send)
        self._backtraces.begin(pids)

    def close(self) -> None:
        """End the processes that look at ranks."""
        if self._backtraces is not None:
            self._backtraces.close()

    def unread(self, pids: Iterable[int]) -> list[int]:
        """Return those of the processes of ranks whose stacks the last look could not read."""
        read = self._reading.read if self._reading is not None else set()
        return [pid for pid in pids if worker_of(pid) not in read]

    def _tell(self, look: Look, fenced: Callable[[], list[int]], until: float) -> None:
        assert self._reading is not None
        if not self._reading.is_done and time.monotonic() < until:
            self._timers.set("observe", READ_LOOK, lambda: self._tell(look, fenced, until))
            return
        while self._reading.found:
            self._send(self._reading.found.pop(0))
        self._send({"type": "observed", "ranks": look.again(), "fenced": fenced(), "nccl": self._reading.nccl})
