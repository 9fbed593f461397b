"""Explain a failed job: add to its verdict the last lines of the first failure, a hint, and its likely cause. Pure: no I/O."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from mpilaunch.head.ranks import Ranks
from mpilaunch.job.hangs.stacks import last_lines
from mpilaunch.job.hints import asked_for_input, find_exception, find_hint, likely_cause
from mpilaunch.job.state import RankEnd
from mpilaunch.job.verdict import LikelyCause, Verdict

LAST_LINES = 12
"""Lines of the failed rank's output that the error message shows."""


LINES_LOST = (
    "nothing has come of what it printed: a C or Fortran program on a pipe loses what it has not flushed when it dies so; "
    "--stdout pty has it written line by line"
)


def explain(
    verdict: Verdict,
    first: RankEnd,
    lines_of: Callable[[int], Sequence[bytes]],
    has_printed: Callable[[int], bool],
    ranks: Ranks,
) -> Verdict:
    """Return the verdict with the node of its first failure, what that rank wrote last, a hint, and its likely cause."""
    lines = lines_of(first.rank)
    finding = find_hint(first, lines)
    hint = None if finding is None else finding.hint
    if first.errno == errno.E2BIG:
        hint = ranks.explain_size(first.rank)
    elif asked_for_input(lines) and not ranks.gets_stdin(first.rank):
        hint = f"it asked for input, and this rank gets none: --stdin {first.rank} gives it yours, on a terminal too"
    elif first.errno == errno.ENOEXEC:
        hint = "no program for this machine; a script needs a first line like #!/bin/sh (or: mpilaunch sh FILE)"
    elif hint is None and first.abrupt and ranks.holds_lines_back(first.rank) and not has_printed(first.rank):
        hint = LINES_LOST
    cause = likely_cause(first, verdict.failed_after, lines_of)
    likely = None
    if cause is not None:
        its_lines = lines_of(cause.rank)
        its_finding = find_hint(cause, its_lines)
        its_hint = None if its_finding is None else its_finding.hint
        likely = LikelyCause(cause, ranks.node_name(cause.rank), last_lines(its_lines, LAST_LINES), its_hint)
    elif finding is not None and finding.follow_on and finding.sure:
        # The rank that failed first may not have ended: it may wait for a thread, or in a collective.
        earlier = find_exception(verdict.stopped, lines_of)
        if earlier is not None:
            rank, line = earlier
            where = f"rank {rank} on {ranks.node_name(rank)}"
            hint = f"this may have followed from {where}, which had not ended but printed: {line}"
    hosts = tuple(ranks.node_name(end.rank) for end in verdict.failed_after)
    host = ranks.node_name(first.rank)
    last = last_lines(lines, LAST_LINES)
    return verdict._replace(host=host, last_lines=last, hint=hint, hosts=hosts, likely=likely)
