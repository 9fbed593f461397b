"""Process maps: golden vectors, and any vector expands back to its map."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.mapping import JobMap, Placement
from mpilaunch.processmap import LONGEST, process_mapping


def job_map(nodes: Sequence[int]) -> JobMap:
    """Return the map of a job by the node of each rank."""
    placements = tuple(Placement(rank, node, list(nodes[:rank]).count(node), 0) for rank, node in enumerate(nodes))
    return JobMap(placements, tuple(sorted(set(nodes))))


def expand(vector: str) -> list[int]:
    """Return the node of each rank, as the MPI libraries read it."""
    assert re.fullmatch(r"\(vector(,\(\d+,\d+,\d+\))+\)", vector)
    blocks = [tuple(map(int, block)) for block in re.findall(r"\((\d+),(\d+),(\d+)\)", vector)]
    return [node for first, nodes, count in blocks for node in range(first, first + nodes) for _ in range(count)]


@pytest.mark.parametrize(
    ("nodes", "vector"),
    [
        ([0], "(vector,(0,1,1))"),
        ([0, 0, 1, 1], "(vector,(0,2,2))"),
        ([0, 1, 0, 1], "(vector,(0,2,1),(0,2,1))"),
        ([0, 0, 0, 1, 2], "(vector,(0,1,3),(1,2,1))"),
        ([0, 0, 0, 1, 1, 2], "(vector,(0,1,3),(1,1,2),(2,1,1))"),
        ([4, 4, 9, 9], "(vector,(0,2,2))"),
        ([1, 0], "(vector,(1,1,1),(0,1,1))"),
    ],
)
def test_golden_vectors(nodes: list[int], vector: str) -> None:
    assert process_mapping(job_map(nodes)) == vector


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_every_vector_expands_to_its_map(nodes: list[int]) -> None:
    places = sorted(set(nodes))
    assert expand(process_mapping(job_map(nodes))) == [places.index(node) for node in nodes]


def test_a_vector_that_no_library_could_read_is_left_out() -> None:
    vectors = [process_mapping(job_map([0, 1] * turns)) for turns in range(100, 150)]
    assert all(len(vector) <= LONGEST for vector in vectors)
    assert vectors[0] and not vectors[-1]
