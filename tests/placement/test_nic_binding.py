"""The ports of InfiniBand and RoCE that ranks are given."""

from __future__ import annotations

import pytest

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.allocation import Allocation, Node, Slot
from mpilaunch.hosts.network_facts import NetworkFacts, Port
from mpilaunch.hosts.node_facts import Cpu, Gpu, NodeFacts
from mpilaunch.placement.cpu_binding import CpuPolicy
from mpilaunch.placement.gpu_binding import GpuPolicy, RankBinding, bind_ranks, describe_binding
from mpilaunch.placement.mapping import MappingPolicy, map_ranks
from mpilaunch.placement.nic_binding import nic_variables


def node(gpus: list[tuple[str, int]], ports: list[tuple[str, int, bool]], vendor: str = "nvidia") -> NodeFacts:
    """A machine of two sockets; GPUs and ports by their paths from the root of PCI, and NUMA nodes."""
    found = [
        Gpu(vendor, number, f"GPU-{number:08x}", path.rpartition("/")[2], "", numa) for number, (path, numa) in enumerate(gpus)
    ]
    network = NetworkFacts(
        ports=tuple(
            Port(f"mlx5_{number}:1", "InfiniBand", active, 400, numa, path) for number, (path, numa, active) in enumerate(ports)
        ),
        gpu_paths={path.rpartition("/")[2]: path for path, _ in gpus},
    )
    cpus = tuple(Cpu(number, number, number // 4, number // 4) for number in range(8))
    return NodeFacts("h", "3.11.7", "/usr/bin/python3", cpus, tuple(found), network, None, 20000)


def bound(facts: NodeFacts, slots: int = 8, cpu: CpuPolicy = CpuPolicy(), **policy: object) -> list[RankBinding]:  # noqa: B008
    allocation = Allocation((Node(0, "n", (Slot(),) * slots, "ssh"),), "--host")
    job_map = map_ranks(allocation, MappingPolicy())
    found = bind_ranks(allocation, job_map, {0: facts}, GpuPolicy(nics=True, **policy), cpu)  # type: ignore[arg-type]
    return [found[rank] for rank in sorted(found)]


def nics(facts: NodeFacts, **options: object) -> list[tuple[str, ...]]:
    return [binding.nics for binding in bound(facts, **options)]  # type: ignore[arg-type]


# Of a DGX H100: each pair of GPU and ConnectX-7 behind a port of a PCIe switch, four on each socket; two more for storage.
SWITCHES = ("15", "3a", "4b", "5a", "97", "b7", "c7", "d7")
DGX = node(
    [(f"pci0000:{bus}/0000:{bus}:01.0/0000:{bus}:10.0/0000:{bus}:14.0", place // 4) for place, bus in enumerate(SWITCHES)],
    [(f"pci0000:{bus}/0000:{bus}:01.0/0000:{bus}:20.0/0000:{bus}:24.0", place // 4, True) for place, bus in enumerate(SWITCHES)]
    + [("pci0000:26/0000:26:01.0/0000:27:00.0", 0, True), ("pci0000:a7/0000:a7:01.0/0000:a8:00.0", 1, True)],
)
# Of a machine with MI300X: each GPU and its port behind a root port of their own, on one root complex for two of them.
MI300 = node(
    [
        (f"pci0000:{10 * (place // 2)}/0000:{10 * (place // 2)}:0{1 + place % 2}.1/0000:0{place}:00.0", place // 4)
        for place in range(8)
    ],
    [
        (f"pci0000:{10 * (place // 2)}/0000:{10 * (place // 2)}:0{1 + place % 2}.1/0000:1{place}:00.0", place // 4, True)
        for place in range(8)
    ],
    "amd",
)
OWN = [(f"mlx5_{number}:1",) for number in range(8)]


def test_each_gpu_of_a_dgx_has_its_own_port() -> None:
    assert nics(DGX) == OWN
    assert nics(DGX, per_rank=1) == OWN


def test_each_gpu_of_an_mi300_machine_has_its_own_port() -> None:
    assert nics(MI300) == OWN


def test_a_rank_of_several_gpus_has_the_ports_of_all() -> None:
    assert nics(DGX, slots=4, per_rank=2) == [
        ("mlx5_0:1", "mlx5_1:1"),
        ("mlx5_2:1", "mlx5_3:1"),
        ("mlx5_4:1", "mlx5_5:1"),
        ("mlx5_6:1", "mlx5_7:1"),
    ]


def test_a_port_without_a_connection_is_not_given() -> None:
    ports = tuple(port._replace(active=port.name != "mlx5_2:1") for port in DGX.network.ports)
    found = nics(DGX._replace(network=DGX.network._replace(ports=ports)))
    # The others on the socket of GPU 2 are equally far from it.
    assert found[2] == ("mlx5_0:1", "mlx5_1:1", "mlx5_3:1", "mlx5_8:1") and found[3] == ("mlx5_3:1",)


def test_without_shared_bridges_the_numa_node_counts() -> None:
    found = node(
        [("pci0000:00/0000:01:00.0", 0), ("pci0000:80/0000:81:00.0", 1)], [("pci0000:10/x", 0, True), ("pci0000:90/y", 1, True)]
    )
    assert nics(found, slots=2) == [("mlx5_0:1",), ("mlx5_1:1",)]


def test_where_all_are_equally_far_nothing_is_given() -> None:
    one = node([("pci0000:00/0000:01:00.0", 0), ("pci0000:80/0000:81:00.0", 0)], [("pci0000:10/x", 0, True)])
    unknown = node([("", -1), ("", -1)], [("", -1, True), ("", -1, True)])
    assert nics(one, slots=2) == nics(unknown, slots=2) == [(), ()]


def test_ranks_without_gpus_go_by_their_cpus() -> None:
    machine = node([], [("pci0000:10/x", 0, True), ("pci0000:90/y", 1, True)])
    by_core = CpuPolicy(bind_to="socket")
    assert nics(machine, slots=2, cpu=by_core) in ([("mlx5_0:1",), ("mlx5_1:1",)], [("mlx5_0:1",), ("mlx5_0:1",)])
    assert nics(machine, slots=2) == [(), ()]


def test_a_node_without_an_active_port_is_an_error() -> None:
    for ports in ([], [("pci0000:10/x", 0, False)]):
        with pytest.raises(LaunchError, match="n has no active port of InfiniBand or RoCE") as caught:
            nics(node([], ports), slots=1)
        assert caught.value.reference == "nic-missing"


def test_what_ranks_and_users_see_of_it() -> None:
    assert nic_variables(("mlx5_0:1", "mlx5_1:1")) == {
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
        "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1",
    }
    assert nic_variables(()) == {}
    assert describe_binding(bound(DGX, per_rank=1)[0]).endswith("gpus nvidia 0 GPU-0000, nics mlx5_0:1")
