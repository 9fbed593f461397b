"""The state of ranks, cell by cell, and the verdict."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import ExitCode
from mpilaunch.job.state import RANK_STATES, JobState, RankEnd, signal_name
from mpilaunch.job.verdict import first_failure, verdict_of_ranks

EVENTS = ("started", "exited", "drained", "lost")
CELLS = {
    ("waiting", "started"): "running",
    ("waiting", "exited"): "exited",
    ("waiting", "lost"): "lost",
    ("running", "exited"): "exited",
    ("running", "drained"): "drained",
    ("running", "lost"): "lost",
    ("drained", "exited"): "finished",
    ("drained", "lost"): "lost",
    ("exited", "drained"): "finished",
    ("exited", "lost"): "lost",
    ("finished", "lost"): "finished",
    ("lost", "lost"): "lost",
}
"""What becomes of a rank; every other cell cannot be."""


@pytest.mark.parametrize(("state", "event"), list(itertools.product(RANK_STATES, EVENTS)), ids=lambda value: str(value))
def test_every_cell_of_the_table(state: str, event: str) -> None:
    job = JobState({0: state, 1: "running"})
    if (state, event) in CELLS:
        job.apply(0, event)
        assert job.states == {0: CELLS[state, event], 1: "running"}
        assert job.finished == ({0} if CELLS[state, event] in ("finished", "lost") else set())
    else:
        with pytest.raises(ValueError, match=f"rank 0 is {state}: event {event} is not allowed"):
            job.apply(0, event)
        assert job.states[0] == state


def test_the_table_has_no_other_cells() -> None:
    assert {(state, event): after for state, row in RANK_STATES.items() for event, after in row.items()} == CELLS


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(EVENTS)), max_size=30))
def test_a_job_has_ended_when_each_rank_has_exited_and_drained_or_is_lost(events: list[tuple[int, str]]) -> None:
    job = JobState.of(range(3))
    taken: dict[int, set[str]] = {rank: set() for rank in range(3)}
    for rank, event in events:
        try:
            job.apply(rank, event)
        except ValueError:
            continue
        taken[rank].add(event)
    assert job.ended == all("lost" in seen or {"exited", "drained"} <= seen for seen in taken.values())


@pytest.mark.parametrize(
    ("end", "how", "code", "failed"),
    [
        (RankEnd(0, code=0), "exited with code 0", 0, False),
        (RankEnd(0, code=255), "exited with code 255", 255, True),
        (RankEnd(0, signal=11), "killed by SIGSEGV (signal 11)", 139, True),
        (RankEnd(0, signal=6, core=True), "killed by SIGABRT (signal 6), core dumped", 134, True),
        (RankEnd(0, signal=63), "killed by signal 63 (signal 63)", 191, True),
        (RankEnd(0, errno=2), "could not be executed: No such file or directory", 127, True),
        (RankEnd(0, errno=13), "could not be executed: Permission denied", 126, True),
        (RankEnd(0, errno=8), "could not be executed: Exec format error", 126, True),
    ],
)
def test_how_a_rank_ended(end: RankEnd, how: str, code: int, failed: bool) -> None:
    assert (end.description, end.exit_code, end.failed) == (how, code, failed)


def test_signals_without_a_name() -> None:
    assert (signal_name(15), signal_name(63)) == ("SIGTERM", "signal 63")


def ended(*ends: RankEnd, lost: tuple[int, ...] = ()) -> JobState:
    """Return the state of a job whose ranks have ended so."""
    job = JobState.of(sorted([*(end.rank for end in ends), *lost]))
    for end in ends:
        job.apply(end.rank, "started")
        job.apply(end.rank, "exited", end)
        job.apply(end.rank, "drained")
    for rank in lost:
        job.apply(rank, "lost")
    assert job.ended
    return job


def test_all_well() -> None:
    verdict = verdict_of_ranks(ended(RankEnd(0, code=0), RankEnd(1, code=0)))
    assert (verdict.exit_code, verdict.cause, verdict.first, verdict.finished) == (ExitCode.OK, "ok", None, (0, 1))


def test_the_first_failure_by_time_gives_the_code_and_the_others_are_sorted_out() -> None:
    first = RankEnd(3, signal=11, clock=1.0)
    after = RankEnd(1, code=4, clock=1.1)
    verdict = verdict_of_ranks(
        ended(
            RankEnd(0, code=0, clock=0.5),
            after,
            RankEnd(2, signal=15, stopped=True, clock=1.2),
            first,
            RankEnd(4, code=0, stopped=True, clock=1.3),
            lost=(5,),
        )
    )
    assert (verdict.exit_code, verdict.cause, verdict.first) == (139, "rank-failed", first)
    assert verdict.failed_after == (after,)
    assert verdict.stopped == (2, 5)
    assert verdict.finished == (0, 4)


def test_at_the_same_moment_the_lower_rank_is_first() -> None:
    verdict = verdict_of_ranks(ended(RankEnd(1, code=2, clock=1.0), RankEnd(0, code=3, clock=1.0)))
    assert verdict.exit_code == 3


def test_an_end_that_we_brought_about_is_no_failure_however_early_its_clock() -> None:
    # Clocks of two nodes are mapped with an error of half a round trip.
    stopped = RankEnd(0, signal=15, stopped=True, clock=0.9)
    failed = RankEnd(1, code=7, clock=1.0)
    verdict = verdict_of_ranks(ended(stopped, failed))
    assert (verdict.first, verdict.stopped, verdict.failed_after) == (failed, (0,), ())


def test_when_all_was_stopped_nobody_failed() -> None:
    job = ended(RankEnd(0, code=1, stopped=True), RankEnd(1, signal=9, stopped=True))
    assert first_failure(job) is None
    assert job.other_ranks(None) == ((), (0, 1), ())


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(0, 9)), max_size=8))
def test_every_rank_is_reported_once(found: list[tuple[int, bool, float]]) -> None:
    ends = [RankEnd(rank, code=code, stopped=stopped, clock=clock) for rank, (code, stopped, clock) in enumerate(found)]
    verdict = verdict_of_ranks(ended(*ends, RankEnd(len(ends), code=1, clock=10.0)))
    assert verdict.first is not None
    named = [verdict.first.rank, *(end.rank for end in verdict.failed_after), *verdict.stopped, *verdict.finished]
    assert sorted(named) == list(range(len(ends) + 1))
