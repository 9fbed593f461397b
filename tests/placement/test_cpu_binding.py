"""Binding to CPUs where mpirun is no model: lists, rankfiles, overload, and CPUs that are missing.

test_mapping_peers.py compares everything else with mpirun.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.allocation import Node, Slot
from mpilaunch.hosts.node_facts import Cpu
from mpilaunch.placement.cpu_binding import Cores, CpuPolicy, bind_cpus, picture
from mpilaunch.placement.mapping import Placement
from mpilaunch.placement.synthetic import cpus_of
from mpilaunch.placement.topology import OBJECTS, objects
from tests.support.placement.topologies import TOPOLOGIES

# Two sockets of two cores of two threads; core 0 is CPUs 0 and 4, socket 0 is CPUs 0, 1, 4 and 5.
D = cpus_of(TOPOLOGIES["D"])


def bind(count: int, policy: CpuPolicy, cpus: tuple[Cpu, ...] = D) -> list[tuple[int, ...] | None]:
    node = Node(0, "node07", (Slot(),) * count, "ssh", origin="hosts.txt:3")
    bound = bind_cpus(node, [Placement(rank, 0, rank, rank) for rank in range(count)], cpus, {}, policy)
    return [bound[rank] for rank in range(count)]


def refusal(count: int, policy: CpuPolicy, cpus: tuple[Cpu, ...] = D) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        bind(count, policy, cpus)
    assert caught.value.exit_code == 1 and caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (CpuPolicy("cpu-list", cpu_list=(0, 3)), [(0, 3, 4, 7)] * 2),
        (CpuPolicy("cpu-list", cpu_list=(3, 0), ordered=True), [(3, 7), (0, 4)]),
        (CpuPolicy("cpu-list", cpu_list=(1, 2), hwthreads=True), [(1, 4)] * 2),
        (CpuPolicy("core", cpu_list=(1, 3)), [(1, 5), (3, 7)]),
        (CpuPolicy("socket", cpu_list=(1, 2, 3)), [(1, 5), (2, 3, 6, 7)]),
        (CpuPolicy("user", lists=((0, 2), (5,))), [(0, 2), (5,)]),
        (CpuPolicy("user", lists=((3,),)), [(3,), (3,)]),
        (CpuPolicy("cpu-list", cpu_list=(1, 0), ordered=True), [(1, 5), (0, 4)]),
        (CpuPolicy("user"), [(0,), (1,)]),
        (CpuPolicy("user", cpus_per_rank=3), [(0, 1, 2), (3, 4, 5)]),
        (CpuPolicy("machine"), [tuple(range(8))] * 2),
        (CpuPolicy("core", overload=True), [(0, 4), (1, 5)]),
        (CpuPolicy("user", chosen=((Cores(1, (1,)),), (Cores(None, (0,)), Cores(1)))), [(3, 7), (0, 2, 3, 4, 6, 7)]),
        (CpuPolicy("user", hwthreads=True, chosen=((Cores(1, (1,)),), (Cores(None, (2,)),))), [(6,), (1,)]),
        (CpuPolicy("user", chosen=((Cores(0, (0,)), Cores(0)),) * 2), [(0, 1, 4, 5)] * 2),
        (CpuPolicy("l3cache", if_supported=True), [None, None]),
        (CpuPolicy("core", map_by="l3cache", if_supported=True), [None, None]),
    ],
)
def test_two_ranks(policy: CpuPolicy, expected: list[tuple[int, ...] | None]) -> None:
    assert bind(2, policy) == expected


def test_the_size_of_the_job_and_the_node_settle_what_is_left_open() -> None:
    def settled(policy: CpuPolicy, ranks: int) -> tuple[str, str]:
        found = policy.settled(ranks, D)
        return found.bind_to, found.map_by

    opened = CpuPolicy("default", map_by="default")
    assert [settled(opened, ranks) for ranks in (2, 3)] == [("core", "core"), ("numa", "slot")]
    assert settled(opened._replace(hwthreads=True), 2) == ("hwthread", "hwthread")
    assert opened._replace(cpus_per_rank=2, bind_to="core").settled(2, D).map_by == "numa"
    assert opened._replace(bind_to="core").settled(8, [cpu._replace(numa=-1) for cpu in D]).map_by == "slot"
    assert CpuPolicy("socket", map_by="core").settled(2, D) == CpuPolicy("socket", map_by="core")


def test_overload_shares_cores_in_blocks_or_in_turn() -> None:
    assert bind(6, CpuPolicy("core", overload=True, in_turn=True))[4:] == [(0, 4), (1, 5)]
    assert bind(6, CpuPolicy("core", overload=True)) == [(0, 4), (0, 4), (1, 5), (2, 6), (2, 6), (3, 7)]
    assert bind(5, CpuPolicy("core", map_by="core", overload=True)) == [(0, 4), (1, 5), (2, 6), (3, 7), (0, 4)]


@pytest.mark.parametrize(
    ("count", "policy", "reference", "message"),
    [
        (2, CpuPolicy("cpu-list", cpu_list=(0, 4, 9)), "cpu-unknown", "--cpu-set on node07: there is no core 4,9"),
        (3, CpuPolicy("cpu-list", cpu_list=(0, 1), ordered=True), "binding-overload", "node07 has 2 cores for 3 ranks"),
        (3, CpuPolicy("user", cpus_per_rank=3), "binding-overload", "node07 has 8 hwthreads for 3 ranks with 3 each"),
        (1, CpuPolicy("user", lists=((0, 9),)), "cpu-unknown", "--bind-to user: no CPU 9 may be used on node07"),
        (1, CpuPolicy("user", chosen=((Cores(2),),)), "cpu-unknown", "rank 0 on node07: there is no socket 2"),
        (1, CpuPolicy("user", chosen=((Cores(1, (2,)),),)), "cpu-unknown", "rank 0 in socket 1 on node07: there is no core 2"),
        (5, CpuPolicy("core", map_by="socket"), "binding-overload", "node07 has 4 cores for 5 ranks with 1 each, which need 5"),
        (3, CpuPolicy("core", 2, map_by="socket"), "binding-overload", "which need 6 dealt to 2 sockets"),
        (1, CpuPolicy("core", 5, overload=True), "binding-overload", "node07 has 4 cores for 1 rank with 5 each"),
        (1, CpuPolicy("l3cache"), "object-unknown", "node07 reports no l3cache"),
        (1, CpuPolicy("core", map_by="l2cache"), "object-unknown", "node07 reports no l2cache"),
        (1, CpuPolicy("core", 5, if_supported=True), "binding-overload", "node07 has 4 cores"),
    ],
)
def test_what_a_node_cannot_give(count: int, policy: CpuPolicy, reference: str, message: str) -> None:
    caught = refusal(count, policy)
    assert caught.reference == reference
    assert message in caught.message


def test_logical_numbers_leave_out_what_may_not_be_used() -> None:
    usable = tuple(cpu for cpu in D if cpu.number not in (0, 4))
    assert bind(1, CpuPolicy("user", chosen=((Cores(None, (0,)),),)), usable) == [(1, 5)]
    assert refusal(1, CpuPolicy("cpu-list", cpu_list=(3,)), usable).context == ("cores that may be used there: 0-2",)


def test_the_picture_is_mpiruns() -> None:
    assert picture((0, 4), D) == "[BB/..][../..]"
    assert picture((1, 6), D) == "[../B.][.B/..]"
    assert picture((), cpus_of(TOPOLOGIES["E"])) == "[./././././.]"


@given(
    topology=st.sampled_from(sorted(TOPOLOGIES)),
    count=st.integers(1, 20),
    map_by=st.sampled_from(["slot", *OBJECTS]),
    bind_to=st.sampled_from(sorted(OBJECTS)),
    per_object=st.none() | st.integers(1, 3),
    rank_by=st.sampled_from([None, "fill", "core", "socket", "numa"]),
    in_turn=st.booleans(),
    overload=st.booleans(),
    hidden=st.sets(st.integers(0, 15), max_size=6),
)
def test_each_rank_is_bound_to_whole_objects_that_it_may_use(
    topology: str,
    count: int,
    map_by: str,
    bind_to: str,
    per_object: int | None,
    rank_by: str | None,
    in_turn: bool,
    overload: bool,
    hidden: set[int],
) -> None:
    usable = tuple(cpu for cpu in cpus_of(TOPOLOGIES[topology]) if cpu.number not in hidden)
    order = {"rank_by": rank_by, "in_turn": in_turn}
    policy = CpuPolicy(bind_to, map_by=map_by, per_object=per_object, overload=overload, **order)  # type: ignore[arg-type]
    try:
        bound = bind(count, policy, usable)
    except LaunchError as error:
        assert error.reference in ("object-unknown", "binding-overload")
        assert error.reference == "object-unknown" or bind_to in ("core", "hwthread") or not usable
        return
    whole = [{cpu.number for cpu in one} for one in objects(usable, bind_to)]
    assert all(set(numbers or ()) in whole for numbers in bound)
    if bind_to == "hwthread" and not overload:
        assert len(set(bound)) == count
