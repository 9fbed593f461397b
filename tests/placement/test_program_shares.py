"""The map of a job of several programs: each takes what those before it have left."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import Allocation, HostDefaults, Node, Slot, allocate
from mpilaunch.hosts.hostfile import parse_host_list
from mpilaunch.placement.mapping import JobMap, MappingPolicy, map_ranks
from mpilaunch.placement.program_shares import Share, map_apps


def of_hosts(text: str, *, elastic: bool = False) -> Allocation:
    found = allocate(parse_host_list(text), "--host", HostDefaults())
    return Allocation(found.nodes, found.source, elastic)


def shares(*ranks: int | None, **policy: Any) -> list[Share]:
    return [Share(f"app{number}", MappingPolicy(count, **policy)) for number, count in enumerate(ranks)]


def drawn(job_map: JobMap) -> str:
    """Each rank as app:node/slot, in rank order."""
    return " ".join(f"{place.app}:{place.node}/{place.slot}" for place in job_map.placements)


@pytest.mark.parametrize(
    ("nodes", "wanted", "expected"),
    [
        ("a:2,b:2", shares(1, 2), "0:0/0 1:0/1 1:1/0"),
        ("a:2,b:2", shares(1, 2, map_by="node"), "0:0/0 1:0/1 1:1/0"),
        ("a:2,b:2", shares(2, 2), "0:0/0 0:0/1 1:1/0 1:1/1"),
        ("a:2,b:2", shares(None, None, per_node=1), "0:0/0 0:1/0 1:0/1 1:1/1"),
        ("a:1,b:1", shares(1, 3, oversubscribe=True), "0:0/0 1:1/0 1:0/0 1:1/0"),
        ("a:1,b:1", shares(2, 1, oversubscribe=True), "0:0/0 0:1/0 1:0/0"),
        ("a:1,b:2", [Share("x", MappingPolicy(1), {1: 2}), Share("y", MappingPolicy(2))], "0:1/0 1:0/0 1:1/1"),
        ("a:1,b:2", [Share("x", MappingPolicy(1), {1: 1}), Share("y", MappingPolicy(1), {1: 1})], "0:1/0 1:1/1"),
    ],
)
def test_each_program_takes_what_is_left(nodes: str, wanted: list[Share], expected: str) -> None:
    assert drawn(map_apps(of_hosts(nodes), wanted)) == expected


def test_this_machine_takes_any_number() -> None:
    assert drawn(map_apps(of_hosts("a:2", elastic=True), shares(1, 3))) == "0:0/0 1:0/1 1:0/0 1:0/1"


def test_ranks_fixed_by_a_slot_map_are_those_of_the_job() -> None:
    slots = (Slot(rank=2), Slot(), Slot(rank=0))
    allocation = Allocation((Node(0, "a", slots, "ssh"), Node(1, "b", (Slot(),), "ssh")), "m.yaml")
    assert drawn(map_apps(allocation, shares(2, 2))) == "0:0/2 0:0/1 1:0/0 1:1/0"


@pytest.mark.parametrize(
    ("nodes", "wanted", "message"),
    [
        ("a:2", shares(3, 1), r"program 1 \(app0\): 3 ranks do not fit in 2 slots"),
        ("a:2", shares(1, 2), r"program 2 \(app1\), in the slots that are left: 2 ranks do not fit in 1 slot"),
        ("a:2", shares(2, 1), r"program 2 \(app1\), in the slots that are left: no slots on 1 node"),
    ],
)
def test_the_error_names_the_program(nodes: str, wanted: list[Share], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        map_apps(of_hosts(nodes), wanted)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.sampled_from(["slot", "node"]),
    st.booleans(),
)
def test_invariants(slots: list[int], ranks: list[int], map_by: str, oversubscribe: bool) -> None:
    nodes = tuple(Node(index, f"n{index}", (Slot(),) * count, "ssh") for index, count in enumerate(slots))
    allocation = Allocation(nodes, "hosts")
    wanted = shares(*ranks, map_by=map_by, oversubscribe=oversubscribe)
    try:
        job_map = map_apps(allocation, wanted)
    except UsageError:
        assert not sum(slots) or (not oversubscribe and sum(ranks) > sum(slots))
        return
    assert [place.rank for place in job_map.placements] == list(range(sum(ranks)))
    assert Counter(place.app for place in job_map.placements) == dict(enumerate(ranks))
    assert [place.app for place in job_map.placements] == sorted(place.app for place in job_map.placements)
    for node in job_map.nodes:
        assert [place.local_rank for place in job_map.placements if place.node == node] == list(
            range(sum(place.node == node for place in job_map.placements))
        )
    used = Counter((place.node, place.slot) for place in job_map.placements)
    if sum(ranks) <= sum(slots):
        assert set(used.values()) == {1}
    elif map_by == "slot":  # by node, the nodes' slots do not count once there are too few
        assert len(used) == sum(slots)
    one = map_ranks(allocation, wanted[0].policy)
    assert [(place.node, place.slot) for place in job_map.placements[: ranks[0]]] == [
        (place.node, place.slot) for place in one.placements
    ]
