"""The objects of a node, and the order in which ranks are assigned to them."""

from __future__ import annotations

import pytest

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.node_facts import Cpu
from mpilaunch.placement.topology import OBJECTS, assign_objects, objects, objects_of, overlapping, round_robin

CPUS = [Cpu(number, number % 4, number % 4 // 2, 0, l1=number % 4, l3=number % 4 // 2) for number in range(8)]
"""Two sockets of two cores of two threads; the second threads have the numbers 4 to 7, and no level 2 cache is told."""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("hwthread", [[0], [4], [1], [5], [2], [6], [3], [7]]),
        ("core", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("l1cache", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("l2cache", []),
        ("l3cache", [[0, 4, 1, 5], [2, 6, 3, 7]]),
        ("numa", [[0, 4, 1, 5, 2, 6, 3, 7]]),
        ("socket", [[0, 4, 1, 5], [2, 6, 3, 7]]),
        ("machine", [[0, 4, 1, 5, 2, 6, 3, 7]]),
    ],
)
def test_objects_are_in_logical_order(kind: str, expected: list[list[int]]) -> None:
    assert [[cpu.number for cpu in members] for members in objects(CPUS, kind)] == expected


def test_every_kind_has_an_example() -> None:
    assert set(OBJECTS) == {"hwthread", "core", "l1cache", "l2cache", "l3cache", "numa", "socket", "machine"}


def test_a_node_that_does_not_report_an_object_is_named() -> None:
    with pytest.raises(LaunchError, match="node01 reports no l2cache"):
        objects_of("node01", CPUS, "l2cache")


def test_ranks_go_to_objects_in_turn_or_several_at_a_time() -> None:
    assert assign_objects(3, 7, None) == [0, 1, 2, 0, 1, 2, 0]
    assert assign_objects(3, 7, 2) == [0, 0, 1, 1, 2, 2, 0]


def test_each_sequence_gives_one_in_turn_and_nothing_twice() -> None:
    assert list(round_robin([[0, 1, 2], [2, 3], []])) == [0, 2, 1, 3]


def test_objects_that_share_a_cpu() -> None:
    sockets, cores = objects(CPUS, "socket"), objects(CPUS, "core")
    assert overlapping(cores, sockets[1]) == [2, 3]
    assert overlapping(sockets, cores[0]) == [0]
