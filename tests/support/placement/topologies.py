"""Nodes that are made up by hwloc's synthetic descriptions, and where a rank is bound on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mpilaunch.cli.job.ranks import placement_options
from mpilaunch.hosts import allocation
from mpilaunch.hosts.hostfile import parse_host_list
from mpilaunch.hosts.network_facts import NetworkFacts
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.hosts.nodeset import fold_numbers
from mpilaunch.placement.gpu_binding import GpuPolicy, bind_ranks
from mpilaunch.placement.map_by import placement_policies
from mpilaunch.placement.mapping import map_ranks
from mpilaunch.placement.synthetic import cpus_of
from mpilaunch.placement.topology import objects
from tests.support.command_line import settings

TOPOLOGIES = {
    "A": "package:2 [numa] l3:1 core:4 pu:1",
    "B": "package:2 numa:2 l3:1 core:2 pu:2",
    "C": "[numa] package:1 l3:2 l2:2 core:2 pu:1",
    "D": "package:2 [numa] core:2 pu:2(indexes=0,4,1,5,2,6,3,7)",
    "E": "package:1 [numa] l3:1 l2:6 l1:1 core:1 pu:1",
}


def facts_of(name: str) -> NodeFacts:
    return NodeFacts(name, "3.11.7", "/usr/bin/python3", cpus_of(TOPOLOGIES[name]), (), NetworkFacts(), None, 20000)


def of_hosts(hosts: str) -> allocation.Allocation:
    return allocation.allocate(parse_host_list(hosts), "--host", allocation.HostDefaults())


def bound(topologies: Sequence[str], hosts: str, options: str, name: str = "mpilaunch") -> str:
    """Map and bind as mpilaunch does under this name, on nodes with these topologies; return it as `drawn` writes it."""
    mapping, cpu = placement_policies(placement_options(settings(options, name=name)))
    nodes = of_hosts(hosts)
    facts = {node.index: facts_of(topologies[node.index % len(topologies)]) for node in nodes.nodes}
    job_map = map_ranks(nodes, mapping, {index: found.cpus for index, found in facts.items()})
    bindings = bind_ranks(nodes, job_map, facts, GpuPolicy(), cpu)
    where = {place.rank: (nodes.nodes[place.node].name, bindings[place.rank].cpus) for place in job_map.placements}
    return drawn(
        {rank: (host, None if numbers is None else logical(numbers, facts_of_host(nodes, facts, host)))
         for rank, (host, numbers) in where.items()}
    )


def facts_of_host(nodes: allocation.Allocation, facts: Mapping[int, NodeFacts], host: str) -> NodeFacts:
    return next(facts[node.index] for node in nodes.nodes if node.name == host)


def logical(numbers: Iterable[int], found: NodeFacts) -> list[int]:
    """Return the places of CPU numbers in hwloc's logical order."""
    order = [cpu.number for one in objects(found.cpus, "hwthread") for cpu in one]
    return sorted(order.index(number) for number in numbers)


def drawn(places: Mapping[int, tuple[str, Iterable[int] | None]]) -> str:
    """Write where each rank is: `node1=0@0-3,1@4-7`, ranks in order, CPUs by logical number; one that is not bound is `0`."""
    nodes: dict[str, list[str]] = {}
    for rank, (host, numbers) in sorted(places.items()):
        at = "" if numbers is None else "@" + fold_numbers(numbers).replace(",", "+")
        nodes.setdefault(host, []).append(f"{rank}{at}")
    return " ".join(f"{host}=" + ",".join(nodes[host]) for host in sorted(nodes))
