"""The verdict of a job: what failed first, the exit code, and what is to blame. Pure.

The first failure and the exit code are facts of order and time. What texts of ranks tell, an explanation, stands beside them
and never changes them. A node that died before a rank failed is to blame for it: ranks notice the end of another's connections
sooner than the head does.
"""

from __future__ import annotations

from typing import NamedTuple

from mpilaunch.errors import ExitCode
from mpilaunch.job.state import JobState, RankEnd

LOST_CODE = 255
"""Exit code of a node that is lost or cannot be reached among those of which --exit-code takes the largest, as with ssh."""
BROKE_TOGETHER = 5.0
"""Seconds after a rank's failure in which the connection to another node must break for the node to be suspected."""


class LikelyCause(NamedTuple):
    """Another rank that failed: its end, its node's name, the last lines of its stderr, and the likely reason, if known."""

    end: RankEnd
    host: str
    last_lines: tuple[bytes, ...] = ()
    hint: str | None = None


class Verdict(NamedTuple):
    """How a job ended.

    Attributes:
        exit_code: exit code of mpilaunch.
        cause: "ok", "rank-failed", "hosts-failed", "node-lost", "mpi-failed", "timeout", "hang", "interrupted", "preempted"
            or "output-lost"; or the reason why the last attempt did not start.
        first, host: for cause "rank-failed", the rank that failed first, and the name of its node.
        detail: for the other causes, a description ("node07: no sign of life for 30 s").
        last_lines, hint: the last lines of `first`'s stderr, unmodified, and the likely reason, if known.
        failed_after, hosts: ends of the other ranks that failed by themselves, in rank order, and the names of their nodes.
        lost: names of nodes that were lost after it.
        stopped, finished: ranks that mpilaunch ended because of the failure, and ranks that had ended without failure.
        likely: the rank whose failure the first one most likely followed from.
        others: what the other ranks did when the first one failed, in lines.
        swept: orphaned descendants of ranks that were ended: (node name, process id, command name).
        seconds: from the start of the first rank to the first failure, or to the end of the last rank.
        earlier: how the earlier attempts ended, and why there is no further one; a line each.
        largest: for cause "hosts-failed", the largest exit code of a host.
        instead: lines to print in place of a message, where each failure was reported as it became known.
        unread: output was dropped because its reader did not take it before a requested stop.
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
    lost: tuple[str, ...] = ()
    stopped: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    likely: LikelyCause | None = None
    others: tuple[str, ...] = ()
    swept: tuple[tuple[str, int, str], ...] = ()
    seconds: float = 0.0
    earlier: tuple[str, ...] = ()
    largest: int = 0
    instead: tuple[str, ...] | None = None
    unread: bool = False

    @property
    def headline(self) -> str:
        """The end in one line: "rank 3 on node02 exited with code 1 after 2.0 s"."""
        if self.detail:
            return self.detail.splitlines()[0]
        if self.first is not None:
            return f"rank {self.first.rank} on {self.host} {self.first.description} after {self.seconds:.1f} s"
        return ""


def exit_code_of(verdict: Verdict, policy: str) -> int:
    """Return the exit code of --exit-code: of the "first" failure, the "largest" (255 for a lost node), or "zero"."""
    if policy == "first" or verdict.cause not in ("rank-failed", "hosts-failed", "node-lost", "timeout", "hang"):
        return verdict.exit_code
    if policy == "zero":
        return ExitCode.OK
    if verdict.cause == "hosts-failed":
        return verdict.largest
    ends = verdict.failed_after if verdict.first is None else (verdict.first, *verdict.failed_after)
    return max([*(end.exit_code for end in ends), 0 if verdict.cause == "rank-failed" and not verdict.lost else LOST_CODE])


def first_failure(state: JobState) -> RankEnd | None:
    """Return the earliest failure of a rank that mpilaunch did not stop."""
    failures = [end for end in state.ends.values() if end.failed and not end.stopped]
    return min(failures, key=lambda end: (end.clock, end.rank), default=None)


def verdict_of_ranks(state: JobState) -> Verdict:
    """Return the verdict of a job whose ranks all ended."""
    first = first_failure(state)
    failed_after, stopped, finished = state.other_ranks(first)
    if first is None:
        return Verdict(ExitCode.OK, "ok", finished=finished)
    return Verdict(first.exit_code, "rank-failed", first, failed_after=failed_after, stopped=stopped, finished=finished)


def is_suspect(failed: float, heard: float, broke: float | None = None) -> bool:
    """Return whether a node may have died before a rank on another node failed; times are those of the head's clock.

    Args:
        failed: when the rank failed.
        heard: when the last byte of the node came. Every node is asked for a sign of life once a rank has failed.
        broke: when its connection broke, None while it is open.
    """
    return heard < failed or (broke is not None and broke <= failed + BROKE_TOGETHER)
