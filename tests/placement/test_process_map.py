"""Process maps: golden vectors, and any vector expands back to its map."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.daemon.mpi.pmi import mapping_text
from mpilaunch.errors import UsageError
from mpilaunch.placement.mapping import JobMap, Placement
from mpilaunch.placement.process_map import process_blocks, read_rankmap


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
    assert mapping_text(process_blocks(job_map(nodes))) == vector


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_every_vector_expands_to_its_map(nodes: list[int]) -> None:
    places = sorted(set(nodes))
    assert expand(mapping_text(process_blocks(job_map(nodes)))) == [places.index(node) for node in nodes]


# --rankmap


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("0,0,1,1", (0, 0, 1, 1)),
        ("(0,2,2)", (0, 0, 1, 1)),
        ("(vector,(0,2,2),2,(0,1,1))", (0, 0, 1, 1, 2, 0)),
        ("2, 0", (2, 0)),
    ],
)
def test_a_rankmap_is_read(text: str, nodes: tuple[int, ...]) -> None:
    assert read_rankmap(text, 3) == nodes


@pytest.mark.parametrize("text", ["", "a", "0,", ",0", "(0,2)", "(0,1,1", "0(0,1,1)", "0;1", "(0,0,0)", "(vector,)"])
def test_what_is_no_rankmap(text: str) -> None:
    with pytest.raises(UsageError, match="is not a map of ranks to nodes"):
        read_rankmap(text, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [("0,3", "no node 3: the last is 2"), ("(2,2,1)", "no node 3"), ("(0,3,999999)", "1,048,576")],
)
def test_a_rankmap_that_does_not_fit(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_rankmap(text, 3)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_what_is_written_is_read_back(nodes: list[int]) -> None:
    # The nodes of a process map are those that run ranks, counted anew.
    used = sorted(set(nodes))
    placements = tuple(Placement(rank, node, 0, 0) for rank, node in enumerate(nodes))
    expected = tuple(used.index(node) for node in nodes)
    assert read_rankmap(mapping_text(process_blocks(JobMap(placements, tuple(used)))), len(used)) == expected
