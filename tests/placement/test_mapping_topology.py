"""Maps that depend on what the nodes are made of: how many ranks each runs, and which."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import LaunchError
from mpilaunch.placement.mapping import MappingPolicy, map_ranks
from mpilaunch.placement.synthetic import cpus_of
from tests.support.placement.topologies import TOPOLOGIES, of_hosts


def ranks_of(hosts: str, topologies: str, policy: MappingPolicy) -> list[list[int]]:
    nodes = of_hosts(hosts)
    found = {node.index: cpus_of(TOPOLOGIES[name]) for node, name in zip(nodes.nodes, topologies, strict=True)}
    job_map = map_ranks(nodes, policy, found)
    return [[place.rank for place in job_map.placements if place.node == node.index] for node in nodes.nodes]


def test_only_some_policies_need_to_know_the_nodes() -> None:
    for policy in (MappingPolicy(map_by="socket"), MappingPolicy(map_by="core", rank_by="socket"), MappingPolicy(per_node=2)):
        assert not policy.needs_topology
    for policy in (
        MappingPolicy(map_by="socket", per_object=2),
        MappingPolicy(map_by="socket", span=True),
        MappingPolicy(rank_by="socket", rank_span=True),
    ):
        assert policy.needs_topology
        with pytest.raises(ValueError, match="needs the topology"):
            map_ranks(of_hosts("a:4"), policy)


def test_a_number_on_each_object_of_nodes_that_differ() -> None:
    # A has two NUMA nodes, B four.
    assert ranks_of("a:8,b:8", "AB", MappingPolicy(map_by="numa", per_object=1)) == [[0, 1], [2, 3, 4, 5]]
    assert ranks_of("a:8,b:8", "AB", MappingPolicy(5, map_by="numa", per_object=1)) == [[0, 1], [2, 3, 4]]
    assert ranks_of("a:8,b:8", "AB", MappingPolicy(5, map_by="numa", per_object=1, rank_by="node")) == [[0, 2], [1, 3, 4]]


def test_all_nodes_as_one() -> None:
    span = MappingPolicy(8, map_by="numa", rank_by="numa", span=True, rank_span=True)
    assert ranks_of("a:8,b:8", "AB", span) == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert ranks_of("a:3,b:8", "AB", span) == [[0, 1, 6], [2, 3, 4, 5, 7]]


def test_numbers_round_the_objects_of_all_nodes() -> None:
    policy = MappingPolicy(6, rank_by="socket", rank_span=True)
    assert ranks_of("a:4,b:4", "AB", policy) == [[0, 1, 4, 5], [2, 3]]


@pytest.mark.parametrize(
    ("nodes", "policy", "message"),
    [
        ("a:8", MappingPolicy(3, map_by="socket", per_object=1), "3 ranks with 1 on each socket do not fit on the 2 sockets"),
        ("a:2", MappingPolicy(map_by="socket", per_object=2), "4 ranks with 2 on each socket do not fit in 2 slots of 1 node"),
        ("a:2", MappingPolicy(map_by="l2cache", per_object=2), "a reports no l2cache"),
        ("a:8", MappingPolicy(9, map_by="socket", span=True), "9 ranks do not fit in 8 slots"),
    ],
)
def test_what_does_not_fit(nodes: str, policy: MappingPolicy, message: str) -> None:
    with pytest.raises(LaunchError) as caught:
        ranks_of(nodes, "A", policy)
    assert message in caught.value.message and caught.value.hint


@given(
    slots=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    ranks=st.integers(1, 30),
    kind=st.sampled_from(["core", "numa", "socket"]),
    span=st.booleans(),
    per_object=st.none() | st.integers(1, 3),
    rank_span=st.booleans(),
    oversubscribe=st.booleans(),
)
def test_every_rank_has_one_place_and_slots_hold(
    slots: list[int], ranks: int, kind: str, span: bool, per_object: int | None, rank_span: bool, oversubscribe: bool
) -> None:
    nodes = of_hosts(",".join(f"n{index}:{count}" for index, count in enumerate(slots)))
    topologies = {node.index: cpus_of(TOPOLOGIES["ABCD"[node.index]]) for node in nodes.nodes}
    policy = MappingPolicy(
        ranks, kind, rank_by="socket", oversubscribe=oversubscribe, per_object=per_object, span=span, rank_span=rank_span
    )
    try:
        job_map = map_ranks(nodes, policy, topologies)
    except LaunchError as error:
        assert error.reference == "not-enough-slots"
        return
    assert [place.rank for place in job_map.placements] == list(range(ranks))
    used = Counter(place.node for place in job_map.placements)
    assert oversubscribe or all(count <= slots[node] for node, count in used.items())
