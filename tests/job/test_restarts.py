"""Keeping a job going, decided: which nodes an attempt uses, and whether there is another."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import Allocation, Node, Slot
from mpilaunch.job.restarts import (
    LONGEST_PAUSE,
    Health,
    Layout,
    describe_changes,
    first_layout,
    merge_discovered,
    next_layout,
    pause_before,
    reason_not_to_restart,
    restart_policy,
)
from mpilaunch.job.settings import Setting, Settings
from mpilaunch.job.spec import RestartPolicy
from mpilaunch.job.state import RankEnd
from mpilaunch.job.verdict import Verdict
from mpilaunch.placement.mapping import JobMap, MappingPolicy


def pool(*slots: int, names: str = "abcdefgh") -> Allocation:
    """Return nodes a, b, c, ... with so many slots."""
    nodes = [Node(index, names[index], (Slot(),) * count, "ssh") for index, count in enumerate(slots)]
    return Allocation(tuple(nodes), "--host")


def asked(nodes: Allocation, mapping: MappingPolicy | None = None, **options: Any) -> RestartPolicy:
    """Return the policy for these options; underscores stand for the hyphens in their names."""
    names = ("max-restarts", "no-restart-codes", "spares", "nnodes", "node-unit", "host-discovery-script")
    values = {**dict.fromkeys(names), "max-restarts": 0, "spares": 0, "node-unit": 1}
    values |= {name.replace("_", "-"): value for name, value in options.items()}
    assert values.keys() == set(names)
    settings = Settings({name: Setting(value) for name, value in values.items()})
    return restart_policy(settings, nodes, mapping or MappingPolicy())


def places(layout: Layout | None) -> list[str]:
    """Return the name of each rank's node."""
    assert layout is not None
    return [layout.allocation.nodes[place.node].name for place in layout.job_map.placements]


def goes_on(nodes: Allocation, health: Health, ranks: int | None = None, **options: Any) -> Layout | None:
    """Return the second attempt of a job."""
    mapping = MappingPolicy(ranks)
    policy = asked(nodes, mapping, max_restarts=1, **options)
    return next_layout(policy, nodes, first_layout(policy, nodes, mapping), health)


def lost(*numbers: int) -> Health:
    return Health(lost=frozenset(numbers)).with_failures(numbers)


def out(*numbers: int) -> Health:
    return Health(unusable=frozenset(numbers)).with_failures(numbers)


# The first attempt


def test_without_options_all_is_as_it_was() -> None:
    nodes = pool(2, 0, 1)
    policy = asked(nodes)
    assert policy == RestartPolicy()
    first = first_layout(policy, nodes, MappingPolicy())
    assert first.allocation is nodes and places(first) == ["a", "a", "c"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"spares": 1}, "aabb"),
        ({"nnodes": "2"}, "aabb"),
        ({"nnodes": "1:2"}, "aabb"),
        ({"nnodes": "1:9"}, "aabbdd"),
        ({"nnodes": "1:9", "spares": 2}, "aa"),
        ({"nnodes": "1:3", "node_unit": 2}, "aabb"),
        ({"nnodes": "2:2", "node_unit": 2}, "aabb"),
    ],
)
def test_where_a_job_begins(options: dict[str, Any], expected: str) -> None:
    nodes = pool(2, 2, 0, 2)
    first = first_layout(asked(nodes, **options), nodes, MappingPolicy())
    assert places(first) == list(expected)
    assert {node.name for node in first.allocation.nodes if node.slots} == set(expected), "idle nodes offer nothing"


@pytest.mark.parametrize(
    ("options", "ranks", "reference"),
    [
        ({"spares": 3}, None, "node-count"),
        ({"nnodes": "4"}, None, "node-count"),
        ({"nnodes": "3", "spares": 1}, None, "node-count"),
        ({"nnodes": "4:9"}, None, "node-count"),
        ({"nnodes": "1:3"}, 4, "option-conflict"),
        ({"node_unit": 2}, None, "option-conflict"),
        ({"nnodes": "2", "node_unit": 2}, None, "option-conflict"),
        ({"nnodes": "3:3", "node_unit": 2}, None, "option-value"),
        ({"nnodes": "3:2"}, None, "option-value"),
        ({"nnodes": "0:2"}, None, "option-value"),
        ({"nnodes": "many"}, None, "option-value"),
        ({"max_restarts": 1, "no_restart_codes": "0"}, None, "option-value"),
        ({"max_restarts": 1, "no_restart_codes": "9-2"}, None, "option-value"),
        ({"max_restarts": 1, "no_restart_codes": "2,,3"}, None, "option-value"),
        ({"max_restarts": 1, "no_restart_codes": "256"}, None, "option-value"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], ranks: int | None, reference: str) -> None:
    with pytest.raises(UsageError) as caught:
        asked(pool(1, 1, 1), MappingPolicy(ranks), **options)
    assert caught.value.reference == reference


def test_a_discovery_script_needs_hosts_to_begin_with() -> None:
    with pytest.raises(UsageError) as caught:
        asked(Allocation(pool(2).nodes, "this machine", elastic_slots=True), host_discovery_script="true")
    assert caught.value.reference == "option-conflict"


# The next attempt, of a job whose size is fixed


def test_nodes_that_did_nothing_wrong_stay() -> None:
    assert places(goes_on(pool(2, 2), Health())) == ["a", "a", "b", "b"]


def test_a_spare_takes_the_place_and_nobody_else_moves() -> None:
    following = goes_on(pool(1, 2, 1, 2), lost(1), spares=1)
    assert following is not None
    assert places(following) == ["a", "d", "d", "c"]
    assert following.used == (0, 3, 2)
    assert [node.index for node in following.allocation.nodes] == [0, 1, 2, 3]
    assert [node.name for node in following.allocation.nodes if not node.slots] == ["b"]


def test_a_spare_that_never_failed_comes_before_a_node_that_died_earlier() -> None:
    earlier = Health(failures={1: 1, 2: 1}, lost=frozenset({1}))
    assert places(goes_on(pool(1, 1, 1, 1), earlier, ranks=2, spares=2)) == ["a", "d"]
    assert places(goes_on(pool(1, 1, 1), earlier, ranks=2, spares=1)) == ["a", "c"], "when there is no other"


def test_a_node_takes_only_ranks_that_it_has_slots_for() -> None:
    assert places(goes_on(pool(1, 2, 1, 2), lost(1), ranks=3)) == ["a", "d", "d"]
    assert places(goes_on(pool(1, 2, 1), lost(1), ranks=3)) == ["a", "b", "b"], "it may be back"
    assert goes_on(pool(1, 2, 1), out(1), ranks=3) is None


def test_those_that_must_go_are_replaced_first() -> None:
    health = Health(failures={0: 2, 1: 1, 2: 1}, lost=frozenset({1}), unusable=frozenset({2}))
    assert places(goes_on(pool(1, 1, 1, 1), health, ranks=3)) == ["a", "b", "d"]
    assert places(goes_on(pool(1, 1, 1, 1, 1), health, ranks=3)) == ["a", "e", "d"]
    assert places(goes_on(pool(1, 1, 1, 1, 1, 1), health, ranks=3)) == ["f", "e", "d"]


def test_a_node_that_rests_works_when_nothing_else_is_left() -> None:
    tired = Health(failures={1: 2})
    assert places(goes_on(pool(1, 1, 1), tired, ranks=2)) == ["a", "c"]
    assert places(goes_on(pool(1, 1), tired)) == ["a", "b"]
    worn = Health(failures={1: 2, 2: 2}, lost=frozenset({1}))
    assert places(goes_on(pool(1, 1, 1), worn, ranks=2)) == ["a", "c"], "one that is there before one that was lost"


def test_nodes_without_spares_keep_their_slots_for_spawned_ranks() -> None:
    following = goes_on(pool(1, 1, 1), lost(0), ranks=1)
    assert following is not None and places(following) == ["b"]
    assert [node.name for node in following.allocation.nodes if node.slots] == ["b", "c"]


# ... and of one whose size may change


@pytest.mark.parametrize(
    ("options", "health", "expected"),
    [
        ({"nnodes": "1:3"}, lost(1), "ac"),
        ({"nnodes": "1:3"}, lost(0, 1, 2), "a"),
        ({"nnodes": "2:3"}, lost(0, 2), "ab"),
        ({"nnodes": "1:3"}, Health(), "abc"),
        ({"nnodes": "1:2"}, lost(1), "ac"),
        ({"nnodes": "1:3"}, Health(failures={2: 2}), "ab"),
        ({"nnodes": "3:4"}, out(1), "abc"),
    ],
)
def test_the_size_follows_the_nodes(options: dict[str, Any], health: Health, expected: str) -> None:
    nodes = pool(1, 1, 1)
    if "3:4" in options.values():
        assert goes_on(nodes, health, **options) is None
    else:
        assert places(goes_on(nodes, health, **options)) == list(expected)


def test_the_size_is_a_multiple_and_grows_again() -> None:
    nodes, mapping = pool(1, 1, 1, 1), MappingPolicy()
    policy = asked(nodes, mapping, max_restarts=9, nnodes="2:4", node_unit=2)
    layout = first_layout(policy, nodes, mapping)
    smaller = next_layout(policy, nodes, layout, lost(3))
    assert places(smaller) == ["a", "b"] and smaller is not None
    assert places(next_layout(policy, nodes, smaller, Health(failures={3: 1}))) == ["a", "b", "c", "d"]


@given(
    slots=some.lists(some.integers(0, 3), min_size=1, max_size=7),
    data=some.data(),
    elastic=some.booleans(),
    spares=some.integers(0, 2),
)
def test_the_layout_is_sound_whatever_happens_to_nodes(
    slots: list[int], data: some.DataObject, elastic: bool, spares: int
) -> None:
    nodes, mapping = pool(*slots), MappingPolicy()
    options: dict[str, Any] = {"nnodes": "1:9"} if elastic else {}
    try:
        policy = asked(nodes, mapping, max_restarts=9, spares=spares, **options)
    except UsageError:
        return
    layout = first_layout(policy, nodes, mapping)
    health = Health()
    for _ in range(4):
        gone = data.draw(some.frozensets(some.sampled_from(layout.used)))
        excluded = data.draw(some.frozensets(some.sampled_from(range(len(slots)))))
        health = Health(health.failures, gone, excluded).with_failures(gone)
        following = next_layout(policy, nodes, layout, health)
        if following is None:
            able = [number for number, count in enumerate(slots) if count and number not in excluded]
            assert not able if elastic else set(layout.used) & excluded
            return
        assert sorted(following.numbers) == list(range(len(slots)))
        assert not set(following.used) & excluded
        if not elastic:
            assert following.job_map == layout.job_map
        stay = [number for number in layout.used if number in following.used]
        assert stay == [number for number in following.used if number in stay], "those that stay keep their order"
        for place in following.job_map.placements:
            node = following.allocation.nodes[place.node]
            assert node.name == nodes.nodes[following.numbers[place.node]].name and place.slot < len(node.slots)
        layout = following


def test_those_that_stay_keep_their_order_when_the_size_changes() -> None:
    nodes, mapping = pool(1, 1, 1, 1), MappingPolicy()
    policy = asked(nodes, mapping, max_restarts=9, nnodes="1:3")
    replaced = next_layout(policy, nodes, first_layout(policy, nodes, mapping), lost(0))
    assert places(replaced) == ["d", "b", "c"] and replaced is not None
    assert places(next_layout(policy, nodes, replaced, Health(failures={0: 2, 1: 1}, lost=frozenset({1})))) == ["d", "c"]


# Hosts that come and go


def test_hosts_that_were_found() -> None:
    nodes, gone = merge_discovered(pool(2, 2, 2), pool(2, 4, 1, names="caz"))
    assert [(node.name, len(node.slots)) for node in nodes.nodes] == [("a", 4), ("b", 2), ("c", 2), ("z", 1)]
    assert [node.index for node in nodes.nodes] == [0, 1, 2, 3]
    assert gone == {1}
    policy = asked(pool(2, 2), max_restarts=1, nnodes="1:9")
    layout = first_layout(policy, pool(2, 2), MappingPolicy())
    assert places(next_layout(policy, nodes, layout, Health(unusable=gone))) == [*"aaaacc", "z"]


@pytest.mark.parametrize("elastic", [True, False])
def test_a_host_that_was_found_with_fewer_slots_is_not_used_as_before(elastic: bool) -> None:
    mapping = MappingPolicy()
    policy = asked(pool(2, 2), mapping, max_restarts=1, nnodes="1:4" if elastic else None)
    layout = first_layout(policy, pool(2, 2), mapping)
    nodes, gone = merge_discovered(pool(2, 2), pool(1, 2))
    following = next_layout(policy, nodes, layout, Health(unusable=gone))
    assert (places(following) == [*"abb"]) if elastic else following is None
    same, gone = merge_discovered(pool(2, 2), pool(1, 1), bare={"a", "b"})
    assert places(next_layout(policy, same, layout, Health(unusable=gone))) == [*"aabb"]
    wider, gone = merge_discovered(pool(2, 2), pool(1, 2, 2))
    replaced = next_layout(asked(pool(2, 2), mapping, max_restarts=1), wider, layout, Health(unusable=gone))
    assert places(replaced) == [*"ccbb"]


# Words


def test_changes_in_words() -> None:
    nodes = pool(1, 1, 1, 1)
    policy = asked(nodes, max_restarts=1, nnodes="1:3")
    first = first_layout(policy, nodes, MappingPolicy())
    following = [next_layout(policy, nodes, first, health) for health in (Health(), lost(0, 2), lost(1))]
    words = [describe_changes(first, found) for found in following if found is not None]
    assert words == ["", "2 nodes instead of 3: b,d", "d for b"]
    one = Layout(first.numbers, first.allocation, JobMap(first.job_map.placements[:1], (0,)))
    assert describe_changes(first, one) == "1 node instead of 3: a"


# Whether and when


def failed(code: int | None = 3, cause: str = "rank-failed", errno: int | None = None) -> Verdict:
    first = RankEnd(0, code=code, errno=errno)
    return Verdict(first.exit_code, cause, first=first if cause == "rank-failed" else None)


@pytest.mark.parametrize(
    ("verdict", "another"),
    [
        (failed(), True),
        (failed(cause="node-lost"), True),
        (failed(cause="mpi-failed"), True),
        (failed(cause="start-timeout"), True),
        (failed(cause="too-few-nodes"), True),
        (failed(2), False),
        (failed(65), False),
        (failed(None, errno=2), False),
        *((failed(cause=cause), False) for cause in ("timeout", "interrupted", "preempted", "output-lost", "gpu-count")),
    ],
    ids=lambda value: value.cause if isinstance(value, Verdict) else "",
)
def test_what_is_followed_by_another_attempt(verdict: Verdict, another: bool) -> None:
    policy = RestartPolicy(limit=2, excluded_codes=frozenset({2, 64, 65}))
    assert (reason_not_to_restart(policy, verdict, 0) == "") is another
    assert reason_not_to_restart(policy, verdict, 2) != ""


def test_pauses_double_up_to_a_limit() -> None:
    pauses = [pause_before(restart) for restart in range(1, 100)]
    assert pauses[:6] == [1, 2, 4, 8, 16, LONGEST_PAUSE]
    assert all(one <= other for one, other in itertools.pairwise(pauses)) and pauses[-1] == LONGEST_PAUSE
