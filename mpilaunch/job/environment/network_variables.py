"""The variables that lead libraries to the network that the machines of a job share, where their own choice would miss it.

Pure. A row of the table says when a library's own choice, as its documents or sources give it, misses the network on a node.
Its variable is then set on every node, since names differ, but where the user or the node has chosen. A library whose own
choice is right is left alone: most clusters get nothing.

Sources: `ProcessGroupGloo::createDefaultDevice` of torch and TensorPipe (the address of the own name); Open MPI's btl/tcp
(every interface that is up); "NCCL_SOCKET_IFNAME" of NCCL's documents (interfaces named ib*, else all but docker* and lo*);
`uct_tcp_query_devices` of UCX (every interface that runs); `ofi_get_list_of_addr` of libfabric (the fastest); CANN's documents
of HCCL_SOCKET_IFNAME (the first by name but docker* and lo*).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from mpilaunch.hosts.network_facts import Interface
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.placement.network import ROUTED, Network, addresses_of


class Variable(NamedTuple):
    """A variable that names a network or an interface to a library.

    Attributes:
        misses: the library's own choice misses the network on the node of this index: None if that cannot be known here.
        value: of the variable on the node of this index.
        unless: other names by which the user or the node may have chosen.
        sockets_only: the variable would hide faster ways than sockets: it is not set where a node has ports of InfiniBand or
            RoCE.
    """

    misses: Callable[[NodeFacts, Network, int], bool | None]
    value: Callable[[Network, int], str]
    unless: tuple[str, ...] = ()
    sockets_only: bool = False


def _interface(network: Network, index: int) -> str:
    return network.links[index].interface


def _interfaces(network: Network, index: int) -> str:
    """Return all interfaces that are equally fast, for libraries that use several at once."""
    return ",".join(dict.fromkeys(one.links[index].interface for one in (network, *network.rails)))


def _for_open_mpi(network: Network, index: int) -> str:
    """Return the networks where Open MPI can compare them with addresses, which are those of IPv4."""
    names = [one.name for one in (network, *network.rails)]
    with_addresses = network.name != ROUTED and ":" not in "".join(names)
    return ",".join(names) if with_addresses else _interfaces(network, index)


def _exactly(network: Network, index: int) -> str:
    return f"={_interfaces(network, index)}"  # which makes them names, not beginnings of names


def _name_leads_elsewhere(facts: NodeFacts, network: Network, index: int) -> bool | None:
    found = facts.network.name_at
    return any(address != network.links[index].address for address in found) if found else None


def _other_is_up(facts: NodeFacts, network: Network, index: int) -> bool:
    return any(_leads_elsewhere(one, network, index) for one in facts.network.interfaces if one.kind != "loopback")


def _other_runs(facts: NodeFacts, network: Network, index: int) -> bool:
    others = (one for one in facts.network.interfaces if one.kind != "loopback" and one.running)
    return any(_leads_elsewhere(one, network, index) for one in others)


def _other_is_fastest(facts: NodeFacts, network: Network, index: int) -> bool:
    running = [one for one in facts.network.interfaces if one.kind != "loopback" and one.running]
    return bool(running) and _leads_elsewhere(max(running, key=lambda one: one.speed), network, index)


def _other_is_first_by_name(facts: NodeFacts, network: Network, index: int) -> bool:
    if not any(gpu.vendor == "ascend" for gpu in facts.gpus):
        return False
    usual = [one for one in facts.network.interfaces if not one.name.startswith(("docker", "lo"))]
    return not usual or _leads_elsewhere(min(usual, key=lambda one: one.name), network, index)


def _other_is_of_nccl(facts: NodeFacts, network: Network, index: int) -> bool:
    found = facts.network.interfaces
    preferred = [one for one in found if one.name.startswith("ib")]
    usual = preferred or [one for one in found if not one.name.startswith(("docker", "lo"))]
    return any(_leads_elsewhere(one, network, index) for one in usual) or not usual


def _leads_elsewhere(interface: Interface, network: Network, index: int) -> bool:
    """Return whether an interface has an address on another network; IPv6 counts only where the network is of IPv6."""
    links = [one.links[index] for one in (network, *network.rails)]
    if network.name == ROUTED and interface.name == links[0].interface:
        return False
    ours = {link.address for link in links}
    names = {one.name for one in (network, *network.rails)}
    addresses = [address for address in addresses_of(interface) if address.version == 4 or ":" in links[0].address]
    return any(str(address.network) not in names and str(address.ip) not in ours for address in addresses)


VARIABLES = {
    "GLOO_SOCKET_IFNAME": Variable(_name_leads_elsewhere, _interface),
    "TP_SOCKET_IFNAME": Variable(_name_leads_elsewhere, _interface),
    "OMPI_MCA_btl_tcp_if_include": Variable(_other_is_up, _for_open_mpi, ("OMPI_MCA_btl_tcp_if_exclude",)),
    "FI_TCP_IFACE": Variable(_other_is_fastest, _interface),
    "UCX_NET_DEVICES": Variable(_other_runs, _interfaces, sockets_only=True),
    "NCCL_SOCKET_IFNAME": Variable(_other_is_of_nccl, _exactly, ("NCCL_NET", "NCCL_NET_PLUGIN"), sockets_only=True),
    "HCCL_SOCKET_IFNAME": Variable(_other_is_first_by_name, _exactly),
}


class Choices(NamedTuple):
    """What is set for the network.

    Attributes:
        variables: of each node, by index.
        missed: some libraries would have missed the network for sure.
    """

    variables: Mapping[int, Mapping[str, str]] = {}
    missed: bool = False

    @property
    def names(self) -> list[str]:
        """The variables that are set on any node."""
        return [name for name in VARIABLES if any(name in of_one for of_one in self.variables.values())]


def network_choices(network: Network, facts: Mapping[int, NodeFacts], given: Collection[str] = ()) -> Choices:
    """Return the variables for each node of a job; `given` are the names that the user sets."""
    variables: dict[int, dict[str, str]] = {index: {} for index in facts}
    ports = any(one.network.ports for one in facts.values())
    missed = False
    for name, row in VARIABLES.items():
        names = {name, *row.unless}
        if names & {*given} or (row.sockets_only and ports):
            continue
        misses = [row.misses(one, network, index) for index, one in facts.items()]
        if all(missed is False for missed in misses):
            continue
        left = [index for index, one in facts.items() if not names & {*one.network.settings}]
        missed = missed or (bool(left) and any(misses))
        for index in left:
            variables[index][name] = row.value(network, index)
    return Choices(variables, missed)
