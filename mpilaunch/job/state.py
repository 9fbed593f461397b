"""The state of a job's ranks, and how each ended. `job.verdict` judges the job by it.

Pure tables: `{state: {event: state}}`. A finished rank has exited *and* its output has drained; finished ranks are a set, never
a counter. Times are seconds of the head's monotonic clock, mapped there from each node's own.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterable, Mapping
from sys import intern
from typing import Any, NamedTuple

LONGEST_EVIDENCE = 500
"""Most characters kept of the kernel's log line about a rank."""

RANK_STATES: dict[str, dict[str, str]] = {
    "waiting": {"started": "running", "exited": "exited", "lost": "lost"},
    "running": {"exited": "exited", "drained": "drained", "lost": "lost"},
    "drained": {"exited": "finished", "lost": "lost"},
    "exited": {"drained": "finished", "lost": "lost"},
    "finished": {"lost": "finished"},
    "lost": {"lost": "lost"},
}
"""Transitions of a rank. A `drained` rank closed its output but still runs; the node of a `lost` rank is gone. A rank that
could not be executed goes from waiting to exited."""


class Evidence(NamedTuple):
    """A node's evidence for the cause of a rank's death (docs/wire.md, `exited`).

    Attributes:
        out_of_memory: the kernel's log line about the out-of-memory kill of this process, or "".
        memory_kills: out-of-memory kills in the node's control group while the job ran.
        shm_free, shm_size: bytes of /dev/shm after a SIGBUS; size 0 if unknown.
    """

    out_of_memory: str = ""
    memory_kills: int = 0
    shm_free: int = 0
    shm_size: int = 0

    @property
    def known(self) -> bool:
        return bool(self.out_of_memory or self.memory_kills or self.shm_size)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Evidence:
        """Parse the evidence of an `exited` message; raises ValueError or TypeError."""
        if not message:
            return _NO_EVIDENCE  # the usual case
        numbers = {name: int(message.get(name, 0)) for name in ("memory_kills", "shm_free", "shm_size")}
        return cls(str(message.get("out_of_memory", ""))[:LONGEST_EVIDENCE], **numbers)


_NO_EVIDENCE = Evidence()


class RankEnd(NamedTuple):
    """How one rank ended.

    Attributes:
        code, signal: its exit code, or the number of the signal that killed it.
        core: it left a core dump.
        stopped: it ended because its node was ending the job, whatever its code.
        errno: why it could not be executed, or None.
        mpi: its progress as an MPI program: "absent" (never called MPI_Init), "connected" (did not call
            MPI_Finalize: others would wait for it forever), "finalized" or "aborted".
        missed: other ranks wait for it in an MPI call that it can no longer make.
        clock: time of the end, in seconds of the head's monotonic clock.
    """

    rank: int
    code: int | None = None
    signal: int | None = None
    core: bool = False
    stopped: bool = False
    errno: int | None = None
    mpi: str = "absent"
    missed: bool = False
    clock: float = 0.0
    evidence: Evidence = _NO_EVIDENCE

    @classmethod
    def from_message(cls, message: Mapping[str, Any], clock: float) -> RankEnd:
        """Parse an `exited` message; raises ValueError or TypeError if its evidence is malformed."""
        fields = {name: message[name] for name in ("rank", "code", "signal", "core", "mpi", "stopped")}
        fields["mpi"] = intern(fields["mpi"])  # one string object for all ranks
        return cls(**fields, clock=clock, evidence=Evidence.from_message(message["evidence"]))

    @property
    def failed(self) -> bool:
        """Whether it failed: any exit code but 0, or 0 while other ranks wait for it in MPI."""
        return self.code != 0 or self.missed or self.mpi in ("connected", "aborted")

    @property
    def abrupt(self) -> bool:
        """Whether a signal or MPI_Abort ended it, so that its library could not flush what it had printed."""
        return self.signal is not None or self.mpi == "aborted"

    @property
    def exit_code(self) -> int:
        """The exit status that a shell would report: the code, 128 + N for signal N, 126 or 127 if it could not be executed."""
        if self.errno is not None:
            return 127 if self.errno == errno.ENOENT else 126
        if self.code is not None:
            return self.code or int(self.failed)
        return 128 + (self.signal or 0)

    @property
    def description(self) -> str:
        """The end as text: "exited with code 3", "killed by SIGSEGV (signal 11), core dumped"."""
        if self.errno is not None:
            return f"could not be executed: {os.strerror(self.errno)}"
        if self.signal is None:
            if self.mpi == "aborted":
                return f"called MPI_Abort with code {self.code}"
            if self.missed:
                place = "MPI_Init" if self.mpi == "absent" else "barrier of MPI"
                return f"exited with code {self.code} without the {place} that others wait in"
            return f"exited with code {self.code}" + (" without MPI_Finalize" if self.mpi == "connected" else "")
        return f"killed by {signal_name(self.signal)} (signal {self.signal})" + (", core dumped" if self.core else "")


def signal_name(number: int) -> str:
    """Return "SIGSEGV" for 11, "signal 63" for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class JobState:
    """Every rank's state and end."""

    def __init__(self, states: dict[int, str]) -> None:
        self.states = states
        self.ends: dict[int, RankEnd] = {}
        self.finished: set[int] = set()

    @classmethod
    def of(cls, ranks: Iterable[int]) -> JobState:
        """Return the state of a job before its start."""
        return cls(dict.fromkeys(ranks, "waiting"))

    def apply(self, rank: int, event: str, end: RankEnd | None = None) -> None:
        """Apply an event to a rank; raises ValueError if its state does not allow it."""
        state = self.states[rank]
        if event not in RANK_STATES[state]:
            raise ValueError(f"rank {rank} is {state}: event {event} is not allowed")
        self.states[rank] = RANK_STATES[state][event]
        if end is not None:
            self.ends[rank] = end
        if self.states[rank] in ("finished", "lost"):
            self.finished.add(rank)

    def add(self, ranks: Iterable[int]) -> None:
        """Add waiting ranks to the job."""
        self.states.update(dict.fromkeys(ranks, "waiting"))

    def mark_missed(self, ranks: Iterable[int]) -> None:
        """Count these ranks as failed even if they ended without failure: living ranks wait for them in MPI."""
        ends = [self.ends[rank] for rank in ranks if rank in self.ends]
        self.ends.update({end.rank: end._replace(missed=True) for end in ends if not end.failed})

    @property
    def ended(self) -> bool:
        """Whether every rank is finished or lost."""
        return len(self.finished) == len(self.states)

    def is_alive(self, rank: int) -> bool:
        """Return whether a rank is not known to have ended."""
        return self.states[rank] in ("waiting", "running", "drained")

    def other_ranks(self, first: RankEnd | None) -> tuple[tuple[RankEnd, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the ranks other than `first`: (failed by themselves, stopped by mpilaunch or lost, ended without failure)."""
        failed_after, stopped, finished = [], [], []
        for rank in self.states:
            end = self.ends.get(rank)
            if first is not None and rank == first.rank:
                continue
            if end is None or (end.failed and end.stopped):
                stopped.append(rank)
            elif end.failed:
                failed_after.append(end)
            else:
                finished.append(rank)
        return tuple(failed_after), tuple(stopped), tuple(finished)
