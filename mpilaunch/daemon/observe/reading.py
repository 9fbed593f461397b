"""Reads the stacks of ranks in a thread: a read can wait for a file server that does not answer, and the loop must not."""

from __future__ import annotations

import threading

from mpilaunch.daemon.observe import nccl
from mpilaunch.daemon.observe.python.memory import Unreadable
from mpilaunch.daemon.observe.python.stack import stacks_of
from mpilaunch.daemon.observe.workers import worker_of, workers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Reading:
    """The stacks of some ranks, one rank after the other.

    Attributes:
        nccl: the report of NCCL, if it was asked.
        found: messages with the stacks of a rank each; they are taken from here.
        read: the processes that worked for these ranks.

    Args:
        ranks: process id -> rank.
        ask_nccl: ask NCCL in these ranks.
    """

    def __init__(self, ranks: dict[int, int], *, ask_nccl: bool) -> None:
        self.nccl = ""
        self.found: list[dict[str, Any]] = []
        self.read: set[int] = set()
        self._thread = threading.Thread(target=self._run, args=(list(ranks.items()), ask_nccl), name="stacks", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            pass  # no more processes are allowed to this user: the ranks are told by what the kernel knows

    @property
    def is_done(self) -> bool:
        """Whether every rank was read."""
        return not self._thread.is_alive()

    def _run(self, ranks: list[tuple[int, int]], ask_nccl: bool) -> None:
        for pid, rank in ranks:
            worker = worker_of(pid)
            processes = [process for each in (worker, *workers_of(worker)) if (process := _read(each))]
            if processes and processes[0]["pid"] == worker:
                self.read.add(worker)
                self.found.append({"type": "stack", "rank": rank, "processes": processes})
        if ask_nccl:
            self.nccl = nccl.report(pid for pid, _ in ranks)


def _read(pid: int) -> dict[str, Any] | None:
    try:
        steady, threads = stacks_of(pid)
    except Unreadable:
        return None
    return {"pid": pid, "steady": steady, "threads": threads} if threads else None
