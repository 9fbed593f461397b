"""Gives each rank the ports of InfiniBand or RoCE nearest to its GPUs, by the way over PCI (`--bind-nic`).

Pure. The nearest ports share the most bridges with a GPU, as those behind the same switch; of ports that share equally many,
those on its NUMA node. A rank without a GPU gets those on the NUMA node of its CPUs. Where all ports are equally far, nothing
is set: the rank uses them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.network_facts import Port
from mpilaunch.hosts.node_facts import Gpu, NodeFacts


def bind_nics(
    name: str, gpus: Mapping[int, Sequence[Gpu]], cpus: Mapping[int, tuple[int, ...] | None], facts: NodeFacts
) -> dict[int, tuple[str, ...]]:
    """Return the ports of each rank on a node, none for all of them; raises LaunchError if the node has no active port.

    Args:
        name: of the node.
        gpus: those that each rank computes on.
        cpus: the CPUs that each rank is bound to.
    """
    ports = [port for port in facts.network.ports if port.active]
    if not ports:
        message = f"--bind-nic: {name} has no active port of InfiniBand or RoCE"
        raise LaunchError("nic-missing", message, hint="leave it out; 'ibstat' on the node shows its ports")
    numa_of = {cpu.number: cpu.numa for cpu in facts.cpus}
    found: dict[int, tuple[str, ...]] = {}
    for rank, own in gpus.items():
        places = {(facts.network.gpu_paths.get(gpu.bus_id, ""), gpu.numa) for gpu in own}
        if not places:
            nodes = {numa_of.get(cpu, -1) for cpu in cpus.get(rank) or ()}
            places = {("", nodes.pop() if len(nodes) == 1 else -1)}
        near = {name for path, numa in places for name in _nearest(ports, path, numa)}
        found[rank] = () if len(near) == len(ports) else tuple(port.name for port in ports if port.name in near)
    return found


def nic_variables(ports: Sequence[str]) -> dict[str, str]:
    """Return the variables by which NCCL and UCX use these ports; nothing for all of them."""
    # NCCL takes a name without "=" for the beginning of names.
    return {"NCCL_IB_HCA": f"={','.join(ports)}", "UCX_NET_DEVICES": ",".join(ports)} if ports else {}


def _nearest(ports: Sequence[Port], path: str, numa: int) -> list[str]:
    near = {port.name: (_shared(port.path, path), numa >= 0 and port.numa == numa) for port in ports}
    best = max(near.values())
    return [name for name, closeness in near.items() if closeness == best]


def _shared(one: str, other: str) -> int:
    """Return how many bridges two devices share, from the root of PCI on."""
    count = 0
    for mine, others in zip(one.split("/"), other.split("/"), strict=False):
        if mine != others or not mine:
            break
        count += 1
    return count
