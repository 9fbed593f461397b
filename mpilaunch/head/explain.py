"""The verdict of a job that ended by its ranks, with its reason as far as it is known. Pure: ends and lines in, words out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mpilaunch.job.hints import decisive_failure, find_exception, find_hint
from mpilaunch.job.state import JobState, RankEnd, Verdict, verdict_of_ranks

LAST_LINES = 12
"""Lines of the failed rank that the report shows."""


def explain(
    state: JobState, first: RankEnd, lines_of: Callable[[int], Sequence[bytes]], host_of: Callable[[int], str]
) -> Verdict:
    """Return the verdict with the failure that counts, its node, its last lines and a hint.

    Args:
        first: the earliest failure.
        lines_of: the last lines of a rank's stderr, as far as they are kept.
        host_of: the name of a rank's node.
    """
    first = decisive_failure(first, state.other_ranks(first)[0], lines_of)
    verdict = verdict_of_ranks(state, first)
    lines = lines_of(first.rank)
    found = find_hint(first, lines)
    hint = None if found is None else found.hint
    if found is not None and found.follow_on:
        # Its own end may have to wait: for a thread, for a collective that nobody joins.
        earlier = find_exception(verdict.stopped, lines_of)
        if earlier is not None:
            rank, words = earlier
            hint = f"this followed from rank {rank} on {host_of(rank)}, which had not ended yet but had said: {words}"
    hosts = tuple(host_of(end.rank) for end in verdict.failed_after)
    last_lines = tuple(lines[-LAST_LINES:])
    return replace(verdict, host=host_of(first.rank), last_lines=last_lines, hint=hint, hosts=hosts)
