"""The state of a job's ranks, and the verdict when all have ended.

Pure tables: `{state: {event: state}}`. A finished rank is one that has exited *and* whose output has drained; finished ranks
are a set, never a counter. Times are seconds of the head's monotonic clock, mapped there from each node's own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import Any, NamedTuple

from mpilaunch.errors import ExitCode

LONGEST_EVIDENCE = 500
"""Characters of the kernel's line about a rank that are kept."""

RANK_STATES: dict[str, dict[str, str]] = {
    "waiting": {"started": "running", "exited": "exited", "lost": "lost"},
    "running": {"exited": "exited", "drained": "drained", "lost": "lost"},
    "drained": {"exited": "finished", "lost": "lost"},
    "exited": {"drained": "finished", "lost": "lost"},
    "finished": {"lost": "finished"},
    "lost": {"lost": "lost"},
}
"""What becomes of a rank: `drained` is a rank that closed its output and lives on, `lost` one whose node is gone. A rank that
could not be executed goes from waiting to exited."""


class Evidence(NamedTuple):
    """Evidence of a node about the death of a rank (docs/wire.md, `exited`).

    Attributes:
        out_of_memory: the kernel's line that says that it killed this process for memory, "" where there is none.
        memory_kills: processes of the node's control group that were killed for memory while the job ran.
        shm_free, shm_size: bytes of /dev/shm, after a SIGBUS; size 0 when not known.
    """

    out_of_memory: str = ""
    memory_kills: int = 0
    shm_free: int = 0
    shm_size: int = 0

    @property
    def known(self) -> bool:
        """Whether there is any evidence."""
        return bool(self.out_of_memory or self.memory_kills or self.shm_size)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Evidence:
        """Build it from what came over the wire; raises ValueError or TypeError when it does not fit."""
        if not message:
            return NO_EVIDENCE  # of nearly every rank
        numbers = {name: int(message.get(name, 0)) for name in ("memory_kills", "shm_free", "shm_size")}
        return cls(str(message.get("out_of_memory", ""))[:LONGEST_EVIDENCE], **numbers)


NO_EVIDENCE = Evidence()


class RankEnd(NamedTuple):
    """How one rank ended.

    Attributes:
        rank: place in the job.
        code: exit code, None unless it exited.
        signal: number of the signal that killed it, None unless one did.
        core: it left a core dump.
        stopped: it ended because its node was ending the job, whatever its code.
        errno: why it could not be executed, None unless that.
        mpi: how far it came as an MPI program: "absent" (it did not call MPI_Init), "connected" (nor MPI_Finalize: the others
            would wait for it for ever), "finalized" or "aborted".
        missed: others wait for it in MPI, where it can never come to.
        clock: when, in seconds of the head's monotonic clock.
        evidence: what its node knows beside it.
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
    evidence: Evidence = NO_EVIDENCE

    @classmethod
    def from_message(cls, message: Mapping[str, Any], clock: float) -> RankEnd:
        """Build it from an `exited` message; raises ValueError or TypeError when its evidence does not fit."""
        same = {name: message[name] for name in ("rank", "code", "signal", "core", "mpi", "stopped")}
        same["mpi"] = intern(same["mpi"])  # one text for all ranks
        return cls(**same, clock=clock, evidence=Evidence.from_message(message["evidence"]))

    @property
    def failed(self) -> bool:
        """Whether it failed: any exit code but 0, or 0 while other MPI ranks wait for it."""
        return self.code != 0 or self.missed or self.mpi in ("connected", "aborted")

    @property
    def exit_code(self) -> int:
        """What a shell would show: the code, 128 + N for signal N, 126 or 127 when it could not be executed."""
        if self.errno is not None:
            return 127 if self.errno == 2 else 126
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


@dataclass(frozen=True)
class Verdict:
    """How a job ended.

    Attributes:
        exit_code: what mpilaunch exits with.
        cause: "ok", "rank-failed", "node-lost", "mpi-failed", "timeout", "interrupted", "preempted" or "output-lost"; or why
            the last attempt of a job did not start.
        first: the rank that failed first, for cause "rank-failed".
        host: the name of its node.
        detail: for the other causes, what happened in words ("node07: no sign of life for 30 s").
        last_lines: the last lines of `first`'s stderr, as it wrote them.
        hint: what is known of the reason.
        failed_after: other ranks that failed by themselves, with how they ended, in rank order.
        hosts: the names of their nodes.
        stopped: ranks that mpilaunch ended because of it.
        finished: ranks that had ended well before.
        swept: processes that ranks had left behind and that were ended: (node name, process id, command name).
        seconds: from the start of the first rank to the first failure, or to the end of the last rank.
        earlier: what became of the attempts before this one, and why there is no other; a line each.
        unread: an end that was asked for has left output that nobody read.
    """

    exit_code: int
    cause: str
    first: RankEnd | None = None
    host: str = ""
    detail: str = ""
    last_lines: tuple[bytes, ...] = ()
    hint: str | None = None
    failed_after: tuple[RankEnd, ...] = ()
    hosts: tuple[str, ...] = ()
    stopped: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    swept: tuple[tuple[str, int, str], ...] = ()
    seconds: float = 0.0
    earlier: tuple[str, ...] = ()
    unread: bool = False

    @property
    def headline(self) -> str:
        """How it ended, in one line: "rank 3 on node02 exited with code 1 after 2.0 s"."""
        if self.detail:
            return self.detail.splitlines()[0]
        if self.first is not None:
            return f"rank {self.first.rank} on {self.host} {self.first.description} after {self.seconds:.1f} s"
        return ""


@dataclass
class JobState:
    """Every rank's state and end."""

    states: dict[int, str]
    ends: dict[int, RankEnd] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, ranks: Iterable[int]) -> JobState:
        """Return the state of a job that has not started."""
        return cls(dict.fromkeys(ranks, "waiting"))

    def apply(self, rank: int, event: str, end: RankEnd | None = None) -> None:
        """Apply an event to a rank; raises ValueError if its state does not allow it."""
        state = self.states[rank]
        if event not in RANK_STATES[state]:
            raise ValueError(f"rank {rank} is {state}: it cannot have {event}")
        self.states[rank] = RANK_STATES[state][event]
        if end is not None:
            self.ends[rank] = end
        if self.states[rank] in ("finished", "lost"):
            self.finished.add(rank)

    def add(self, ranks: Iterable[int]) -> None:
        """Add ranks to the job, in the state waiting."""
        self.states.update(dict.fromkeys(ranks, "waiting"))

    def mark_missed(self, ranks: Iterable[int]) -> None:
        """Count these ranks as failed if they ended well: living ranks wait for them in MPI."""
        ends = [self.ends[rank] for rank in ranks if rank in self.ends]
        self.ends.update({end.rank: end._replace(missed=True) for end in ends if not end.failed})

    @property
    def ended(self) -> bool:
        """Every rank is finished or lost."""
        return len(self.finished) == len(self.states)

    def is_alive(self, rank: int) -> bool:
        """Return whether a rank runs, as far as is known."""
        return self.states[rank] in ("waiting", "running", "drained")

    def first_failure(self) -> RankEnd | None:
        """Return the earliest end that was a failure of the rank's own."""
        failures = [end for end in self.ends.values() if end.failed and not end.stopped]
        return min(failures, key=lambda end: (end.clock, end.rank), default=None)

    def other_ranks(self, first: RankEnd | None) -> tuple[tuple[RankEnd, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the ranks beside `first`: (failed by themselves, stopped by us or lost, ended well)."""
        failed_after, stopped, finished = [], [], []
        for rank in self.states:
            end = self.ends.get(rank)
            if end is not None and first is not None and end.rank == first.rank:
                continue
            if end is None or (end.failed and end.stopped):
                stopped.append(rank)
            elif end.failed:
                failed_after.append(end)
            else:
                finished.append(rank)
        return tuple(failed_after), tuple(stopped), tuple(finished)


def verdict_of_ranks(state: JobState, first: RankEnd | None = None) -> Verdict:
    """Return the verdict of a job that ended by its ranks alone; `first` is the failure that counts, else the earliest."""
    first = first or state.first_failure()
    failed_after, stopped, finished = state.other_ranks(first)
    if first is None:
        return Verdict(ExitCode.OK, "ok", finished=finished)
    return Verdict(
        first.exit_code, "rank-failed", first=first, failed_after=failed_after, stopped=stopped, finished=finished
    )
