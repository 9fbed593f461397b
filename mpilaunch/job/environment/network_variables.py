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
from mpilaunch.placement.network import LOOPBACK, ROUTED, Network, addresses_of


class View(NamedTuple):
    """What decides on a node whether a library finds the network.

    Attributes:
        facts: of the node.
        address: its own on the network.
        astray: names of its interfaces that have an address on another network.
    """

    facts: NodeFacts
    address: str
    astray: frozenset[str]

    @property
    def running(self) -> list[Interface]:
        """The interfaces that run, but for the loopback."""
        return [one for one in self.facts.network.interfaces if one.running and one.kind != LOOPBACK]

    @property
    def usual(self) -> list[Interface]:
        """The interfaces that NCCL and HCCL take for those of a network, by their names."""
        return [one for one in self.facts.network.interfaces if not one.name.startswith(("docker", "lo"))]


class Variable(NamedTuple):
    """A variable that names a network or an interface to a library.

    Attributes:
        misses: the library's own choice misses the network on a node: None if that cannot be known here.
        value: of the variable on the node of this index.
        unless: other names by which the user or the node may have chosen.
        sockets_only: the variable would hide faster ways than sockets: it is not set where a node has ports of InfiniBand or
            RoCE.
    """

    misses: Callable[[View], bool | None]
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


def _name_leads_elsewhere(view: View) -> bool | None:
    found = view.facts.network.name_at
    return any(address != view.address for address in found) if found else None


def _other_is_up(view: View) -> bool:
    return bool(view.astray)


def _other_runs(view: View) -> bool:
    return any(one.name in view.astray for one in view.running)


def _other_is_fastest(view: View) -> bool:
    return bool(view.running) and max(view.running, key=lambda one: one.speed).name in view.astray


def _other_is_first_by_name(view: View) -> bool:
    if not any(gpu.vendor == "ascend" for gpu in view.facts.gpus):
        return False
    return not view.usual or min(one.name for one in view.usual) in view.astray


def _other_is_of_nccl(view: View) -> bool:
    taken = [one for one in view.facts.network.interfaces if one.name.startswith("ib")] or view.usual
    return not taken or any(one.name in view.astray for one in taken)


def _view(facts: NodeFacts, network: Network, index: int) -> View:
    """Return what a node has; addresses of IPv6 lead astray only where the network is of IPv6."""
    alike = (network, *network.rails)
    names, ours = {one.name for one in alike}, {one.links[index].address for one in alike}
    own = network.links[index]

    def leads_astray(interface: Interface) -> bool:
        if interface.kind == LOOPBACK or (network.name == ROUTED and interface.name == own.interface):
            return False
        others = [text for text in interface.addresses if text.partition("/")[0] not in ours]  # parsing takes long
        addresses = [address for address in addresses_of(others) if address.version == 4 or ":" in own.address]
        return any(str(address.network) not in names and str(address.ip) not in ours for address in addresses)

    return View(facts, own.address, frozenset(one.name for one in facts.network.interfaces if leads_astray(one)))


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
    views = [_view(one, network, index) for index, one in facts.items()]
    ports = any(one.network.ports for one in facts.values())
    missed = False
    for name, row in VARIABLES.items():
        names = {name, *row.unless}
        if names & {*given} or (row.sockets_only and ports):
            continue
        misses = list(map(row.misses, views))
        if all(one is False for one in misses):
            continue
        left = [index for index, one in facts.items() if not names & {*one.network.settings}]
        missed = missed or (bool(left) and any(misses))
        for index in left:
            variables[index][name] = row.value(network, index)
    return Choices(variables, missed)
