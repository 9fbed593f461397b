"""Explain a failed job: choose the failure that counts and add its last lines and a hint. Pure: no I/O."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from mpilaunch.head.ranks import Ranks
from mpilaunch.job.hints import decisive_failure, find_exception, find_hint
from mpilaunch.job.state import JobState, RankEnd, Verdict, verdict_of_ranks

LAST_LINES = 12
"""Lines of the failed rank's output that the error message shows."""


def explain(state: JobState, first: RankEnd, lines_of: Callable[[int], Sequence[bytes]], ranks: Ranks) -> Verdict:
    """Return the verdict with the failure that counts, which may not be the first, its node, its last lines and a hint."""
    first = decisive_failure(first, state.other_ranks(first)[0], lines_of)
    verdict = verdict_of_ranks(state, first)
    lines = lines_of(first.rank)
    finding = find_hint(first, lines)
    hint = None if finding is None else finding.hint
    if first.errno == errno.E2BIG:
        hint = ranks.explain_size(first.rank)
    if finding is not None and finding.follow_on:
        # The rank that failed first may not have ended: it may wait for a thread, or in a collective.
        earlier = find_exception(verdict.stopped, lines_of)
        if earlier is not None:
            rank, line = earlier
            hint = f"this followed from rank {rank} on {ranks.node_name(rank)}, which had not ended yet but had said: {line}"
    hosts = tuple(ranks.node_name(end.rank) for end in verdict.failed_after)
    last_lines = tuple(lines[-LAST_LINES:])
    return verdict._replace(host=ranks.node_name(first.rank), last_lines=last_lines, hint=hint, hosts=hosts)
