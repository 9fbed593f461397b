"""The times of nodes on the head's clock."""

from __future__ import annotations

import math

import pytest

from mpilaunch.head.observe.clock import NodeClock


def test_the_fastest_answer_counts() -> None:
    clock = NodeClock()
    clock.greeted(10.0, 1000.0)
    assert clock.read(1001.0) == 11.0
    clock.answered(11.0, 12.0, 1001.9)
    assert clock.read(1003.0) == pytest.approx(12.6)
    clock.answered(13.0, 15.0, 1000.0)  # slower
    assert clock.read(1004.0) == pytest.approx(13.6)


def test_a_better_estimate_turns_no_events_of_a_node_round() -> None:
    clock = NodeClock()
    clock.greeted(10.0, 1000.0)
    first = clock.read(1001.0)
    clock.answered(11.0, 11.1, 1001.5)
    second = clock.read(1001.1)
    assert first == 11.0 < second < 11.0001
    assert clock.read(1001.1) == second
    earlier = clock.read(1001.05)  # a rank that was killed had called MPI_Abort before
    assert earlier < second


@pytest.mark.parametrize("node", [math.inf, -math.inf, math.nan])
def test_a_clock_that_shows_no_time_is_not_believed(node: float) -> None:
    clock = NodeClock()
    clock.greeted(10.0, 1000.0)
    clock.answered(11.0, 11.1, node)
    clock.answered(12.0, 11.1, 1.0)  # an answer to a question of the future
    assert clock.read(1001.0) == 11.0
