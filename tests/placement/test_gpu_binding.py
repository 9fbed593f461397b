from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.allocation import Allocation, Node, Slot
from mpilaunch.hosts.network_facts import NetworkFacts
from mpilaunch.hosts.node_facts import Cpu, Gpu, NodeFacts
from mpilaunch.placement.cpu_binding import CpuPolicy
from mpilaunch.placement.gpu_binding import GpuPolicy, RankBinding, bind_ranks, describe_binding, without_masks
from mpilaunch.placement.mapping import JobMap, Placement

ANY = CpuPolicy()


def nvidia(count: int, per_numa: int = 4) -> tuple[Gpu, ...]:
    return tuple(Gpu("nvidia", n, f"GPU-{n}{n}{n}{n}-f00d", f"0000:{n:02x}:00.0", "H200", n // per_numa) for n in range(count))


def of(vendor: str, count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(vendor, n, f"GPU-{n:016x}" if vendor == "amd" else "") for n in range(count))


def cpus(sockets: int = 2, cores: int = 2, threads: int = 2) -> tuple[Cpu, ...]:
    """Numbered as Linux does on x86: first all first threads, then the second ones; one NUMA node per socket."""
    total = sockets * cores
    return tuple(Cpu(n, n % total, n % total // cores, n % total // cores) for n in range(total * threads))


def facts(gpus: Sequence[Gpu] = (), threads: Sequence[Cpu] = ()) -> NodeFacts:
    return NodeFacts("h", "3.11.7", "/usr/bin/python3", tuple(threads), tuple(gpus), NetworkFacts(), None, 20000)


def bind(
    slots: int | Sequence[Slot],
    found: NodeFacts,
    gpu: GpuPolicy = GpuPolicy(),  # noqa: B008
    cpu: CpuPolicy = ANY,
    ranks: int | None = None,
) -> dict[int, RankBinding]:
    """Bind on one node, `node07`; ranks beyond the slots start again at the first slot."""
    slots = tuple(Slot() for _ in range(slots)) if isinstance(slots, int) else tuple(slots)
    node = Node(0, "node07", slots, "ssh", origin="hosts.txt:3")
    count = len(slots) if ranks is None else ranks
    placements = tuple(Placement(rank, 0, rank, rank % len(slots)) for rank in range(count))
    return bind_ranks(Allocation((node,), "hosts.txt"), JobMap(placements, (0,)), {0: found}, gpu, cpu)


def variable(bindings: dict[int, RankBinding], name: str = "CUDA_VISIBLE_DEVICES") -> list[str | None]:
    return [bindings[rank].environment.get(name) for rank in sorted(bindings)]


def uuids(*numbers: int) -> str:
    return ",".join(f"GPU-{n}{n}{n}{n}-f00d" for n in numbers)


def error(*arguments: object, **options: object) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        bind(*arguments, **options)  # type: ignore[arg-type]
    assert caught.value.exit_code == 1
    return caught.value


# The modes.


def test_unasked_all_gpus_are_visible_in_order_and_more_ranks_than_gpus_are_no_error() -> None:
    bindings = bind(3, facts(nvidia(2)))
    assert variable(bindings) == [uuids(0, 1)] * 3
    assert variable(bindings, "CUDA_DEVICE_ORDER") == ["PCI_BUS_ID"] * 3
    assert bindings[0].gpus == ("nvidia 0 GPU-0000-f00d", "nvidia 1 GPU-1111-f00d")
    assert "LOCAL_RANK" not in bindings[0].environment


def test_an_inherited_masks_order_is_kept() -> None:
    gpus = nvidia(4)
    assert variable(bind(1, facts((gpus[2], gpus[0])))) == [uuids(2, 0)]


@pytest.mark.parametrize("policy", [GpuPolicy(), GpuPolicy(bind="none", per_rank=2)])
def test_nothing_is_reported_where_there_is_nothing_to_say(policy: GpuPolicy) -> None:
    assert bind(1, facts(nvidia(2) if policy.bind else ()), policy) == {0: RankBinding()}


def test_gpus_per_rank_are_consecutive() -> None:
    assert variable(bind(2, facts(nvidia(4)), GpuPolicy(per_rank=2))) == [uuids(0, 1), uuids(2, 3)]


@pytest.mark.parametrize("mode", ["slot", "virtual"])
def test_one_gpu_per_rank_is_the_default_of_isolation(mode: str) -> None:
    assert variable(bind(2, facts(nvidia(4)), GpuPolicy(bind=mode))) == [uuids(0), uuids(1)]


def test_node_mode_shows_the_used_slots_gpus_in_slot_order() -> None:
    slots = [Slot(gpus=("3",)), Slot(gpus=("1", "3")), Slot(gpus=("0",))]
    assert variable(bind(slots, facts(nvidia(4)), GpuPolicy(bind="node"), ranks=2)) == [uuids(3, 1)] * 2
    assert variable(bind(2, facts(nvidia(4)), GpuPolicy(bind="node", per_rank=1))) == [uuids(0, 1)] * 2


def test_ranks_see_one_gpu_for_each_rank_of_the_node_or_those_that_slots_name() -> None:
    policy = GpuPolicy(bind="ranks")
    assert variable(bind(2, facts(nvidia(4)), policy)) == [uuids(0, 1)] * 2
    assert variable(bind([Slot(gpus=("3",)), Slot(gpus=("1",))], facts(nvidia(4)), policy)) == [uuids(3, 1)] * 2
    assert variable(bind([Slot(gpus=("3",)), Slot(gpus=("1",))], facts([]), policy)) == [None] * 2
    with pytest.raises(LaunchError, match="2 ranks with 1 each need 2"):
        bind(2, facts(nvidia(1)), policy)


def test_virtual_says_local_rank_0_and_keeps_the_real_one() -> None:
    bindings = bind(2, facts(nvidia(4)), GpuPolicy(bind="virtual", per_rank=2))
    assert bindings[1].environment == {
        "CUDA_VISIBLE_DEVICES": uuids(2, 3),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "MPILAUNCH_LOCAL_RANK": "1",
    }


def test_virtual_in_a_job_without_gpus_sets_local_rank_only() -> None:
    policy = GpuPolicy(bind="virtual")
    own = {"LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    assert bind(2, facts([]), policy)[1] == RankBinding(environment={**own, "MPILAUNCH_LOCAL_RANK": "1"})
    with pytest.raises(LaunchError, match="is not there"):
        bind([Slot(gpus=("3",))], facts([]), policy)
    with pytest.raises(LaunchError, match="no GPU"):
        bind(2, facts([]), policy._replace(per_rank=1))
    nodes = Allocation(tuple(Node(index, f"n{index}", (Slot(),), "local") for index in range(2)), "hosts")
    job_map = JobMap((Placement(0, 0, 0, 0), Placement(1, 1, 0, 0)), (0, 1))
    with pytest.raises(LaunchError, match="n1 has no GPU"):
        bind_ranks(nodes, job_map, {0: facts(nvidia(1)), 1: facts([])}, policy, CpuPolicy())


@pytest.mark.parametrize(
    ("mode", "ranks", "together"), [(None, 2, True), (None, 1, False), ("slot", 2, False), ("virtual", 2, False)]
)
def test_ranks_that_see_the_same_gpus(mode: str | None, ranks: int, together: bool) -> None:
    bindings = bind(ranks, facts(nvidia(2)), GpuPolicy(bind=mode))
    assert [(bindings[rank].together, len(bindings[rank].gpus)) for rank in range(ranks)] == [
        (together, 1 if mode else 2)
    ] * ranks


@pytest.mark.parametrize("mode", [None, "slot", "node", "virtual"])
def test_no_gpus_per_rank_hides_all_and_leaves_local_rank(mode: str | None) -> None:
    bindings = bind([Slot(gpus=("0",)), Slot()], facts(nvidia(2)), GpuPolicy(per_rank=0, bind=mode))
    assert [binding.environment for binding in bindings.values()] == [
        {"CUDA_VISIBLE_DEVICES": "-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    ] * 2
    assert bindings[0].gpus == ()


# Slots that name GPUs.


def test_a_slot_sees_exactly_what_it_names_in_its_order() -> None:
    slots = [Slot(gpus=("2", "GPU-0")), Slot(gpus=()), Slot(gpus=("gpu-1111-F00D",))]
    assert variable(bind(slots, facts(nvidia(4)))) == [uuids(2, 0), "-1", uuids(1)]


def test_a_slot_that_names_none_gets_the_next_that_no_slot_names() -> None:
    slots = [Slot(), Slot(gpus=("0", "2")), Slot()]
    assert variable(bind(slots, facts(nvidia(4)))) == [uuids(1), uuids(0, 2), uuids(3)]


def test_gpus_per_rank_cuts_what_a_slot_names() -> None:
    assert variable(bind([Slot(gpus=("3", "1"))], facts(nvidia(4)), GpuPolicy(per_rank=1))) == [uuids(3)]


def test_two_slots_may_name_one_gpu() -> None:
    assert variable(bind([Slot(gpus=("1",)), Slot(gpus=("1",))], facts(nvidia(2)))) == [uuids(1)] * 2


def test_an_index_is_the_machines_though_a_mask_hides_others() -> None:
    found = facts(nvidia(4)[2:])
    assert variable(bind([Slot(gpus=("3",))], found)) == [uuids(3)]
    assert error([Slot(gpus=("0",))], found).reference == "gpu-unknown"


def test_nodes_that_name_gpus_and_nodes_that_do_not_may_be_in_one_job() -> None:
    nodes = (Node(0, "a", (Slot(gpus=("1",)),), "ssh"), Node(1, "b", (Slot(),), "ssh"))
    job_map = JobMap((Placement(0, 0, 0, 0), Placement(1, 1, 0, 0)), (0, 1))
    found = {0: facts(nvidia(2)), 1: facts(nvidia(2))}
    bindings = bind_ranks(Allocation(nodes, "test"), job_map, found, GpuPolicy(), ANY)
    assert variable(bindings) == [uuids(1), uuids(0, 1)]


def test_a_gpu_that_is_not_there_names_node_rank_gpu_and_what_is_there() -> None:
    caught = error([Slot(gpus=("0",)), Slot(gpus=("7",))], facts(nvidia(2)))
    assert caught.reference == "gpu-unknown"
    assert caught.message == "rank 1 on node07: GPU '7' is not there"
    assert caught.context == ("GPUs of node07: nvidia 0 GPU-0000-f00d, nvidia 1 GPU-1111-f00d",)
    assert caught.hint == "name one of these for slot 1 (hosts.txt:3)"


def test_an_ambiguous_uuid_is_an_error() -> None:
    assert error([Slot(gpus=("GPU-",))], facts(nvidia(2))).message == "rank 0 on node07: GPU 'GPU-' matches 2 GPUs there"


def test_no_gpu_at_all_to_name() -> None:
    assert error([Slot(gpus=("0",))], facts()).context == ("GPUs of node07: none",)


def test_one_gpu_twice_in_a_slot_is_an_error() -> None:
    caught = error([Slot(gpus=("1", "GPU-11"))], facts(nvidia(2)))
    assert (caught.reference, caught.message) == ("gpu-twice", "slot 0 of node07 names a GPU twice: 1,GPU-11")


def test_a_slot_with_fewer_gpus_than_each_rank_needs() -> None:
    caught = error([Slot(gpus=("1",))], facts(nvidia(4)), GpuPolicy(per_rank=2))
    assert (caught.reference, caught.message) == ("gpu-count", "rank 0 needs 2 GPUs, but slot 0 of node07 names 1")


# More ranks than GPUs.


@pytest.mark.parametrize(
    ("count", "ranks", "per_rank", "message"),
    [
        (4, 8, 1, "node07 has 4 GPUs, 8 ranks with 1 each need 8"),
        (1, 1, 2, "node07 has 1 GPU, 1 rank with 2 each need 2"),
        (0, 2, 1, "node07 has no GPU, 2 ranks with 1 each need 2"),
    ],
)
def test_more_ranks_than_gpus(count: int, ranks: int, per_rank: int, message: str) -> None:
    caught = error(ranks, facts(nvidia(count)), GpuPolicy(per_rank=per_rank))
    assert (caught.reference, caught.message) == ("gpu-count", message)
    assert "--oversubscribe-gpus" in (caught.hint or "")


def test_what_slots_name_is_not_there_for_others() -> None:
    caught = error([Slot(gpus=("0",)), Slot(), Slot()], facts(nvidia(2)))
    assert caught.message == "node07 has 1 GPU that no slot names, 2 ranks with 1 each need 2"


def test_oversubscribed_gpus_are_dealt_round() -> None:
    policy = GpuPolicy(per_rank=1, oversubscribe=True)
    assert variable(bind(5, facts(nvidia(2)), policy)) == [uuids(n) for n in (0, 1, 0, 1, 0)]


@pytest.mark.parametrize(("count", "per_rank"), [(0, 1), (2, 3)])
def test_no_oversubscription_gives_a_rank_more_gpus_than_there_are(count: int, per_rank: int) -> None:
    assert error(2, facts(nvidia(count)), GpuPolicy(per_rank=per_rank, oversubscribe=True)).reference == "gpu-count"


def test_ranks_of_one_slot_share_its_gpus_only_on_request() -> None:
    slots, found = [Slot(gpus=("1",)), Slot(gpus=("0",))], facts(nvidia(2))
    caught = error(slots, found, ranks=3)
    assert caught.reference == "gpu-shared"
    assert caught.message == "ranks 0 and 2 on node07 are in one slot and would share nvidia 1 GPU-1111-f00d"
    assert variable(bind(slots, found, GpuPolicy(oversubscribe=True), ranks=3)) == [uuids(1), uuids(0), uuids(1)]
    assert variable(bind(slots, found, GpuPolicy(bind="node"), ranks=3)) == [uuids(1, 0)] * 3
    assert variable(bind([Slot(gpus=())], found, ranks=2)) == ["-1"] * 2


# The vendors.


def test_nvidia_without_uuids_goes_by_index() -> None:
    gpus = (Gpu("nvidia", 0, "GPU-a"), Gpu("nvidia", 1))
    assert variable(bind(1, facts(gpus))) == ["0,1"]


def test_amd() -> None:
    (binding,) = bind([Slot(gpus=("3", "1"))], facts(of("amd", 4))).values()
    assert binding.environment == {"ROCR_VISIBLE_DEVICES": "GPU-0000000000000003,GPU-0000000000000001"}
    assert binding.unset == ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


def test_amd_hidden() -> None:
    assert variable(bind(1, facts(of("amd", 2)), GpuPolicy(per_rank=0)), "ROCR_VISIBLE_DEVICES") == ["-1"]


def test_intel_cards_count_upwards_and_composite_makes_a_number_a_card() -> None:
    (binding,) = bind([Slot(gpus=("2", "1"))], facts(of("intel", 4))).values()
    assert binding.environment == {
        "ZE_AFFINITY_MASK": "1,2",
        "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE",
        "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1",
    }
    assert binding.gpus == ("intel 1", "intel 2")


def test_a_whole_intel_node_is_left_as_it_is() -> None:
    (binding,) = bind(1, facts(of("intel", 2))).values()
    assert (binding.environment, binding.gpus) == ({}, ("intel 0", "intel 1"))


def test_intel_hidden() -> None:
    assert variable(bind(1, facts(of("intel", 2)), GpuPolicy(per_rank=0)), "ZE_AFFINITY_MASK") == ["-1"]


def test_ascend_counts_upwards() -> None:
    (binding,) = bind([Slot(gpus=("2", "0"))], facts(of("ascend", 4))).values()
    assert binding.environment == {"ASCEND_RT_VISIBLE_DEVICES": "0,2"}


def test_a_workstations_integrated_gpu_is_neither_counted_nor_shown_to_an_isolated_rank() -> None:
    found = facts(nvidia(1) + of("intel", 1))
    assert variable(bind(1, found, GpuPolicy(per_rank=1)), "ZE_AFFINITY_MASK") == ["-1"]
    assert error(2, found, GpuPolicy(per_rank=1)).message == "node07 has 1 GPU, 2 ranks with 1 each need 2"
    assert error([Slot(gpus=("0",)), Slot(gpus=("1",))], found).reference == "gpu-unknown"


def test_a_variable_that_one_vendor_sets_another_does_not_unset() -> None:
    (binding,) = bind(1, facts(nvidia(1) + of("amd", 1))).values()
    assert binding.environment["CUDA_VISIBLE_DEVICES"] == uuids(0)
    assert binding.unset == ("HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


def test_a_mask_of_somebody_else_replaces_what_is_set_for_its_vendor_only() -> None:
    (both,) = bind(1, facts(nvidia(1) + of("amd", 1))).values()
    without_amd = without_masks(both, frozenset({"HIP_VISIBLE_DEVICES"}))
    assert without_amd.environment == {"CUDA_VISIBLE_DEVICES": uuids(0), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert (without_amd.gpus, without_amd.unset) == (("nvidia 0 GPU-0000-f00d",), ())
    (nvidia_only,) = bind(1, facts(nvidia(1))).values()
    assert without_masks(nvidia_only, frozenset({"HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"})) == nvidia_only
    (amd_only,) = bind(1, facts(of("amd", 1))).values()
    assert without_masks(amd_only, frozenset({"CUDA_VISIBLE_DEVICES"})) == RankBinding()


# CPUs.


@pytest.mark.parametrize(
    ("policy", "ranks", "expected"),
    [
        (CpuPolicy("none"), 2, [None, None]),
        (CpuPolicy("hwthread"), 3, [(0,), (4,), (1,)]),
        (CpuPolicy("hwthread", 2), 2, [(0, 4), (1, 5)]),
        (CpuPolicy("core"), 3, [(0, 4), (1, 5), (2, 6)]),
        (CpuPolicy("core", 2), 2, [(0, 1, 4, 5), (2, 3, 6, 7)]),
        (CpuPolicy("socket"), 1, [(0, 1, 4, 5)]),
        (CpuPolicy("socket"), 2, [(0, 1, 4, 5), (2, 3, 6, 7)]),
        (CpuPolicy("socket"), 4, [(0, 1, 4, 5), (0, 1, 4, 5), (2, 3, 6, 7), (2, 3, 6, 7)]),
        (CpuPolicy("numa"), 3, [(0, 1, 4, 5), (0, 1, 4, 5), (2, 3, 6, 7)]),
    ],
)
def test_cpu_binding(policy: CpuPolicy, ranks: int, expected: list[tuple[int, ...] | None]) -> None:
    bindings = bind(ranks, facts(threads=cpus()), cpu=policy)
    assert [binding.cpus for binding in bindings.values()] == expected


def test_cores_of_interleaved_sockets_fill_one_socket_first() -> None:
    threads = [Cpu(n, n, n % 2, n % 2) for n in range(4)]
    bindings = bind(3, facts(threads=threads), cpu=CpuPolicy("core"))
    assert [binding.cpus for binding in bindings.values()] == [(0,), (2,), (1,)]


@pytest.mark.parametrize(
    ("policy", "ranks", "message"),
    [
        (CpuPolicy("core"), 5, "node07 has 4 cores for 5 ranks with 1 each, which need 5"),
        (CpuPolicy("core", 4), 2, "node07 has 4 cores for 2 ranks with 4 each, which need 8"),
        (CpuPolicy("hwthread"), 9, "node07 has 8 hwthreads for 9 ranks with 1 each, which need 9"),
    ],
)
def test_overload(policy: CpuPolicy, ranks: int, message: str) -> None:
    caught = error(ranks, facts(threads=cpus()), cpu=policy)
    assert (caught.reference, caught.message) == ("binding-overload", message)
    assert "--bind-to none" in (caught.hint or "")


def test_no_known_cpu_is_an_overload_too() -> None:
    assert error(1, facts(), cpu=CpuPolicy("socket")).reference == "binding-overload"


def test_the_cpus_that_a_slot_names_always_bind() -> None:
    bindings = bind([Slot(cpus=(5, 1)), Slot()], facts(threads=cpus()))
    assert [binding.cpus for binding in bindings.values()] == [(1, 5), None]


def test_bind_to_chooses_among_the_cpus_that_a_slot_names_and_leaves_them_to_it() -> None:
    slots = [Slot(cpus=(0, 4, 2, 6)), Slot(), Slot(cpus=(0, 4, 2, 6)), Slot()]
    bindings = bind(slots, facts(threads=cpus()), cpu=CpuPolicy("core"))
    assert [binding.cpus for binding in bindings.values()] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_a_cpu_that_may_not_be_used() -> None:
    caught = error([Slot(cpus=(2, 8, 9, 10))], facts(threads=cpus()))
    assert (caught.reference, caught.message) == ("cpu-unknown", "rank 0 may not use CPU 8-10 on node07")
    assert caught.context == ("CPUs of node07: 0-7",)


@pytest.mark.parametrize("mode", ["slot", "node"])
def test_numa_follows_the_gpu_that_the_rank_computes_on(mode: str) -> None:
    gpus = tuple(reversed(nvidia(2, per_numa=1)))
    bindings = bind(2, facts(gpus, cpus()), GpuPolicy(bind=mode), CpuPolicy("numa"))
    assert [binding.cpus for binding in bindings.values()] == [(2, 3, 6, 7), (0, 1, 4, 5)]


def test_a_gpu_of_unknown_numa_node_changes_nothing() -> None:
    bindings = bind(2, facts(of("amd", 2), cpus()), GpuPolicy(per_rank=1), CpuPolicy("numa"))
    assert [binding.cpus for binding in bindings.values()] == [(0, 1, 4, 5), (2, 3, 6, 7)]


# In words.


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        (RankBinding(), "not bound"),
        (RankBinding(cpus=(3, 0, 1, 8)), "cpus 0-1,3,8"),
        (RankBinding((0, 1, 2, 3), ("nvidia 0 GPU-8a1b2c3d-4e5f",)), "cpus 0-3, gpus nvidia 0 GPU-8a1b"),
        (RankBinding(gpus=("amd 1 GPU-00ff00", "intel 0")), "gpus amd 1 GPU-00ff + intel 0"),
        (RankBinding(environment={"CUDA_VISIBLE_DEVICES": "-1"}), "no gpus"),
    ],
)
def test_describe(binding: RankBinding, words: str) -> None:
    assert describe_binding(binding) == words


# What always holds.

slot_names = st.none() | st.lists(st.sampled_from(["0", "1", "2", "3", uuids(0), uuids(2)]), max_size=3).map(tuple)


@given(
    visible=st.lists(st.integers(0, 3), unique=True),
    names=st.lists(slot_names, min_size=1, max_size=4),
    ranks=st.integers(1, 6),
    policy=st.builds(
        GpuPolicy,
        per_rank=st.none() | st.integers(0, 3),
        bind=st.sampled_from([None, "slot", "node", "ranks", "virtual"]),
        oversubscribe=st.booleans(),
    ),
)
def test_a_rank_never_sees_a_gpu_that_its_node_hides_and_never_one_twice(
    visible: list[int], names: list[tuple[str, ...] | None], ranks: int, policy: GpuPolicy
) -> None:
    gpus = nvidia(4)
    found = facts([gpus[number] for number in visible])
    try:
        bindings = bind([Slot(gpus=own) for own in names], found, policy, ranks=ranks)
    except LaunchError as caught:
        assert "node07" in caught.message
        return
    allowed = {gpu.uuid for gpu in found.gpus}
    for binding in bindings.values():
        listed = binding.environment.get("CUDA_VISIBLE_DEVICES", "-1")
        seen = [] if listed == "-1" else listed.split(",")
        assert set(seen) <= allowed
        assert len(set(seen)) == len(seen) == len(binding.gpus)
        assert not allowed or "CUDA_VISIBLE_DEVICES" in binding.environment


@given(
    ranks=st.integers(1, 8),
    each=st.integers(1, 3),
    unit=st.sampled_from(["core", "hwthread"]),
    usable=st.sets(st.integers(0, 7), min_size=1),
)
def test_cores_and_threads_belong_to_one_rank_and_siblings_stay_together(
    ranks: int, each: int, unit: str, usable: set[int]
) -> None:
    threads = [cpu for cpu in cpus() if cpu.number in usable]
    core = {cpu.number: cpu.core for cpu in threads}
    try:
        bindings = bind(ranks, facts(threads=threads), cpu=CpuPolicy(unit, each))
    except LaunchError as caught:
        assert caught.reference == "binding-overload"
        assert ranks * each > len(set(core.values()) if unit == "core" else core)
        return
    bound = [number for binding in bindings.values() for number in binding.cpus or ()]
    assert len(bound) == len(set(bound))
    assert set(bound) <= usable
    if unit == "core":
        for binding in bindings.values():
            cores = {core[number] for number in binding.cpus or ()}
            assert len(cores) == each
            assert binding.cpus == tuple(number for number in sorted(core) if core[number] in cores)
