"""Collectives: the last node to enter completes one, and all get the data of all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.head.mpi.collectives import Collectives, LimitExceeded, weight

WORLD = [["job", -1]]


class Sized:
    """Collectives for worlds of the given sizes."""

    def __init__(self, **sizes: int) -> None:
        self._sizes = sizes
        self._collectives = Collectives()

    def enter(self, node: int, one: dict[str, Any]) -> Any:
        size = sum(self._sizes[name] if rank < 0 else 1 for name, rank in one["members"])
        entered = self._collectives.enter(node, one, size)
        return entered if entered.complete else None

    def waiting(self) -> Any:
        return self._collectives.waiting()


collectives = Sized


def message(ranks: int, data: Any = None, members: Any = WORLD, kind: str = "pmi") -> dict[str, Any]:
    """Return a node's message."""
    return {"type": "collective", "kind": kind, "members": members, "ranks": ranks, "data": data}


def test_the_last_node_releases_all_with_what_all_gave() -> None:
    job = collectives(job=4)
    assert job.enter(0, message(2, {"a": "1"})) is None
    assert [one.nodes for one in job.waiting()] == [{0: 2}]
    complete = job.enter(3, message(2, {"b": "2"}))
    assert complete is not None and complete.nodes == {0: 2, 3: 2}
    parts = [{"a": "1"}, {"b": "2"}]
    assert complete.answer() == {"kind": "pmi", "members": WORLD, "number": 1, "parts": parts}
    assert list(job.waiting()) == []


def test_members_of_several_worlds_and_single_ranks() -> None:
    job = collectives(job=4, child=3)
    members = [["child", -1], ["job", 0]]
    assert job.enter(0, message(1, members=members)) is None
    assert job.enter(1, message(3, members=members)) is not None


def test_kinds_and_members_make_collectives_of_their_own() -> None:
    job = collectives(job=2)
    assert job.enter(0, message(1)) is None
    assert job.enter(1, message(1, kind="connect")) is None
    assert job.enter(1, message(1, members=[["job", 0], ["job", 1]])) is None
    assert len(list(job.waiting())) == 3


def test_a_quick_node_may_be_in_the_next_one() -> None:
    job = collectives(job=3)
    assert job.enter(0, message(1, "first")) is None
    assert job.enter(0, message(1, "second")) is None
    one = job.enter(1, message(2, "other"))
    assert one is not None and one.parts == ["first", "other"]
    two = job.enter(1, message(2, "other"))
    assert two is not None and two.parts == ["second", "other"] and two.number != one.number


def test_a_node_with_ended_ranks_never_completes_one() -> None:
    job = collectives(job=4)
    assert job.enter(0, message(1)) is None
    assert job.enter(1, message(2)) is None
    assert len(list(job.waiting())) == 1


def test_waiting_collectives_are_limited_in_number_and_bytes() -> None:
    job = Collectives(max_waiting=2, max_bytes=1000)
    assert not job.enter(0, message(1, "x" * 500), 2).complete
    with pytest.raises(LimitExceeded, match="more than 1,000 bytes"):
        job.enter(0, message(1, "x" * 500), 2)
    assert not job.enter(0, message(1, kind="a"), 2).complete
    with pytest.raises(LimitExceeded, match="more than 2 collectives"):
        job.enter(0, message(1, kind="b"), 2)
    assert job.enter(1, message(1, "x"), 2).complete
    assert not job.enter(0, message(1, "x" * 500), 2).complete, "what is complete holds nothing"
    assert len(list(job.waiting())) == 2


def test_the_weight_of_what_is_nested() -> None:
    assert weight({"ab": ["cde", 7]}) == 3 * 100 + 5


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(1, 3), st.randoms())
def test_any_order_of_any_nodes(counts: list[int], rounds: int, random: Any) -> None:
    job = collectives(job=sum(counts))
    for turn in range(rounds):
        order = list(range(len(counts)))
        random.shuffle(order)
        answers = [job.enter(node, message(counts[node], f"{turn}-{node}")) for node in order]
        assert answers[:-1] == [None] * (len(counts) - 1)
        assert answers[-1] is not None and answers[-1].parts == [f"{turn}-{node}" for node in order]
