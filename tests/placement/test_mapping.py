"""The golden maps, the invariants of every map, and the errors of those that do not fit."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import Allocation, HostDefaults, Node, Slot, allocate
from mpilaunch.hosts.hostfile import HostEntry, parse_host_list, parse_hostfile
from mpilaunch.placement.mapping import JobMap, MappingPolicy, Placement, map_ranks
from tests.support.paths import GOLDEN

GOLDEN = GOLDEN / "maps" / "maps.txt"
CASES = [line for line in GOLDEN.read_text().splitlines() if line and not line.startswith("#")]

OPTIONS = argparse.ArgumentParser()
OPTIONS.add_argument("-np", dest="ranks", type=int)
OPTIONS.add_argument("-N", dest="per_node", type=int)
OPTIONS.add_argument("--map-by", default="slot")
OPTIONS.add_argument("--rank-by")
OPTIONS.add_argument("--oversubscribe", action="store_true")
OPTIONS.add_argument("--cycle", action="store_true")
OPTIONS.add_argument("--fix", action="append", default=[])
OPTIONS.add_argument("--max", action="append", default=[])
OPTIONS.add_argument("--elastic", action="store_true")


def of_hosts(text: str) -> Allocation:
    return allocate(parse_host_list(text), "--host", HostDefaults())


def with_options(allocation: Allocation, fixed: Sequence[str], limits: Sequence[str], elastic: bool) -> Allocation:
    nodes = {node.name: node for node in allocation.nodes} if fixed or limits else {}
    for word in fixed:
        place, rank = word.split("=")
        name, slot = place.split("/")
        slots = list(nodes[name].slots)
        slots[int(slot)] = Slot(rank=int(rank))
        nodes[name] = nodes[name]._replace(slots=tuple(slots))
    for word in limits:
        name, limit = word.split("=")
        nodes[name] = nodes[name]._replace(max_slots=int(limit))
    return allocation._replace(nodes=tuple(nodes.values()) or allocation.nodes, elastic_slots=elastic)


def drawn(allocation: Allocation, job_map: JobMap) -> str:
    """Return a map as the golden file writes it."""
    by_node: dict[int, list[Placement]] = defaultdict(list)
    for placement in job_map.placements:
        by_node[placement.node].append(placement)
    return " ".join(
        f"{allocation.nodes[node].name}=" + ",".join(f"{place.rank}.{place.slot}" for place in by_node[node])
        for node in job_map.nodes
    )


@pytest.mark.parametrize("case", CASES)
def test_golden_map(case: str) -> None:
    hosts, options, golden = (part.strip() for part in case.split("|"))
    said = vars(OPTIONS.parse_args(shlex.split(options)))
    allocation = with_options(of_hosts(hosts), said.pop("fix"), said.pop("max"), said.pop("elastic"))
    try:
        job_map = map_ranks(allocation, MappingPolicy(**said))
    except UsageError as error:
        assert error.reference == golden
    else:
        assert drawn(allocation, job_map) == golden


def test_there_are_enough_golden_maps() -> None:
    assert len(CASES) == len(set(CASES)) >= 40


def test_a_map_is_in_rank_order_and_names_the_nodes_used() -> None:
    allocation = of_hosts("a:2,b:2,c:2")
    assert map_ranks(allocation, MappingPolicy(ranks=3, map_by="node", rank_by="slot")) == JobMap(
        (Placement(0, 0, 0, 0), Placement(1, 1, 0, 0), Placement(2, 2, 0, 0)), (0, 1, 2)
    )
    assert map_ranks(allocation, MappingPolicy(ranks=1)).nodes == (0,)


# Invariants


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Allocation, MappingPolicy]:
    counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    total = sum(counts)
    fixed = draw(st.lists(st.sampled_from(range(max(total, 1))), unique=True, max_size=2)) if total else []
    ranks_of_slots = dict(zip(fixed, draw(st.permutations(range(len(fixed)))), strict=True))
    nodes: list[Node] = []
    slot_number = 0
    for index, count in enumerate(counts):
        slots = tuple(Slot(rank=ranks_of_slots.get(slot_number + place)) for place in range(count))
        slot_number += count
        limit = draw(st.none() | st.integers(max(count, 1), 8))
        nodes.append(Node(index, "same-name", slots, "local", max_slots=limit))
    policy = MappingPolicy(
        ranks=draw(st.none() | st.integers(1, 20)),
        map_by=draw(st.sampled_from(["slot", "node"])),
        per_node=draw(st.none() | st.integers(1, 5)),
        rank_by=draw(st.sampled_from([None, "slot", "node"])),
        oversubscribe=draw(st.booleans()),
        cycle=draw(st.booleans()),
    )
    return Allocation(tuple(nodes), "test", elastic_slots=draw(st.booleans())), policy


@given(jobs())
def test_invariants(job: tuple[Allocation, MappingPolicy]) -> None:
    allocation, policy = job
    try:
        job_map = map_ranks(allocation, policy)
    except UsageError as error:
        assert error.reference in ("not-enough-slots", "slot-map")
        return
    placements = job_map.placements
    assert [place.rank for place in placements] == list(range(len(placements)))
    assert policy.ranks is None or len(placements) == policy.ranks
    assert job_map.nodes == tuple(sorted({place.node for place in placements}))
    used = Counter((place.node, place.slot) for place in placements)
    if not (policy.oversubscribe or policy.cycle or allocation.elastic_slots):
        assert set(used.values()) == {1}
    for node in allocation.nodes:
        own = [place for place in placements if place.node == node.index]
        assert [place.local_rank for place in own] == list(range(len(own)))
        assert all(0 <= place.slot < len(node.slots) for place in own)
        assert node.max_slots is None or len(own) <= node.max_slots
        assert policy.per_node is None or len(own) <= policy.per_node
        if policy.per_node is not None and policy.ranks is None and node.slots:
            assert len(own) == policy.per_node
        # No slot of a node has two ranks more than another.
        shares = [used[node.index, slot] for slot in range(len(node.slots))] or [0]
        assert max(shares) - min(shares) <= 1 or any(slot.rank is not None for slot in node.slots)
        for place, slot in enumerate(node.slots):
            if slot.rank is not None:
                fixed = placements[slot.rank]
                assert (fixed.node, fixed.slot) == (node.index, place)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 30))
def test_oversubscription_is_even(counts: list[int], more: int) -> None:
    allocation = Allocation(
        tuple(Node(index, "n", (Slot(),) * count, "local") for index, count in enumerate(counts)), "test"
    )
    job_map = map_ranks(allocation, MappingPolicy(ranks=sum(counts) + more, oversubscribe=True))
    ranks = Counter(place.node for place in job_map.placements)
    beyond = [ranks[index] - count for index, count in enumerate(counts)]
    assert min(beyond) >= 0 and max(beyond) - min(beyond) <= 1 and beyond == sorted(beyond, reverse=True)


# What does not fit


def refusal(allocation: Allocation, policy: MappingPolicy) -> UsageError:
    with pytest.raises(UsageError) as caught:
        map_ranks(allocation, policy)
    assert caught.value.reference == "not-enough-slots"
    return caught.value


def of_file(text: str) -> Allocation:
    entries = parse_hostfile(text, "hosts.txt")
    return allocate(entries, "hosts.txt", HostDefaults())


def test_the_error_counts_the_slots_of_each_node() -> None:
    allocation = of_file("node01 slots=2\nnode02 slots=2\n\nnode03 slots=2\nnode04 slots=2\nbig slots=8 max_slots=9\nlast")
    error = refusal(allocation, MappingPolicy(ranks=64))
    assert error.message == "64 ranks do not fit in 17 slots of 6 nodes (hosts.txt)"
    assert error.context == (
        "node[01-04]: 2 slots each (hosts.txt:1-2,4-5)",
        "big: 8 slots, max_slots 9 (hosts.txt:6)",
        "last: 1 slot (hosts.txt:7)",
    )
    assert error.hint == "give the hosts more slots (host:N, slots=N), or allow more ranks than slots with --oversubscribe"


@pytest.mark.parametrize(
    ("text", "policy", "message", "hint"),
    [
        ("a:2", MappingPolicy(per_node=4), "4 ranks with 4 on each node do not fit in 2 slots of 1 node", "--oversubscribe"),
        (
            "a:4\nb:4",
            MappingPolicy(ranks=5, per_node=2),
            "5 ranks with 2 on each node do not fit on 2 nodes",
            "ask for 4 ranks or fewer",
        ),
        (
            "a slots=1 max_slots=2",
            MappingPolicy(ranks=3, oversubscribe=True),
            "3 ranks do not fit in 1 slot of 1 node (hosts.txt) with their max_slots",
            "raise max_slots",
        ),
        ("a:0", MappingPolicy(), "no slots on 1 node (hosts.txt)", "slots=4"),
        (
            "a:2\nhere slots=9 agent=local",
            MappingPolicy(ranks=3, nolocal=True),
            "3 ranks do not fit in 2 slots of 1 node (hosts.txt, without this machine)",
            "--oversubscribe",
        ),
        ("a agent=local", MappingPolicy(nolocal=True), "--nolocal leaves no node of hosts.txt", "other hosts"),
    ],
)
def test_the_error_names_what_helps(text: str, policy: MappingPolicy, message: str, hint: str) -> None:
    error = refusal(of_file(text), policy)
    assert message in error.message
    assert hint in (error.hint or "")


def test_the_error_for_hosts_of_the_command_line_has_no_lines() -> None:
    assert refusal(of_hosts("n[1-3]"), MappingPolicy(ranks=4)).context == ("n[1-3]: 1 slot each (--host)",)


def test_the_error_is_short_for_many_kinds_of_node() -> None:
    entries = [HostEntry(f"n{slots}", slots=slots) for slots in range(1, 31)]
    allocation = allocate(entries, "x", HostDefaults())
    context = refusal(allocation, MappingPolicy(ranks=1000)).context
    assert len(context) == 13
    assert context[-1] == "and 18 more"


def test_a_fixed_rank_that_the_job_lacks_is_named() -> None:
    allocation = with_options(of_hosts("a:2"), ["a/1=7"], [], False)
    with pytest.raises(UsageError) as caught:
        map_ranks(allocation, MappingPolicy(ranks=2))
    assert caught.value.message == "a slot of a (--host) is for rank 7, but the job has 2 ranks"
