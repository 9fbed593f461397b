"""Fences: whoever comes last lets all go, with what all have put."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.head.fences import Fences


def test_the_last_node_releases_all_with_what_all_have_put() -> None:
    fences = Fences(4)
    assert not fences.waiting
    assert fences.enter(0, 2, {"a": "1"}) is None
    assert fences.waiting
    assert fences.enter(3, 2, {"b": "2"}) == {"a": "1", "b": "2"}
    assert not fences.waiting


def test_the_next_fence_begins_with_nothing() -> None:
    fences = Fences(2)
    fences.enter(0, 1, {"a": "1"})
    fences.enter(1, 1, {})
    assert fences.enter(1, 1, {"c": "3"}) is None
    assert fences.enter(0, 1, {}) == {"c": "3"}


def test_a_node_with_ended_ranks_never_completes_a_fence() -> None:
    fences = Fences(4)
    assert fences.enter(0, 1, {}) is None
    assert fences.enter(1, 2, {}) is None
    assert fences.waiting


def test_a_node_comes_once() -> None:
    fences = Fences(3)
    fences.enter(1, 1, {})
    with pytest.raises(ValueError, match="node 1 is in the fence already"):
        fences.enter(1, 1, {})


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(1, 3), st.randoms())
def test_any_order_of_any_nodes(counts: list[int], rounds: int, random: object) -> None:
    fences = Fences(sum(counts))
    for round_ in range(rounds):
        order = list(range(len(counts)))
        random.shuffle(order)  # type: ignore[attr-defined]
        answers = [fences.enter(node, counts[node], {f"{round_}-{node}": "v"}) for node in order]
        assert answers == [None] * (len(counts) - 1) + [{f"{round_}-{node}": "v" for node in range(len(counts))}]
