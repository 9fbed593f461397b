"""Chooses the network that the ranks of a job use: one that all of its machines share, each with an address of its own.

Pure: the facts of the nodes in, a network or nothing out. Of several, the fastest is chosen; then one of real links before a
tunnel or an overlay; then the one by which the head reached most machines; then the first by address. A network that one
machine lacks, or on which two machines have the same address, as bridges for containers do, is never chosen. Where machines
share no network, those that the head reached, or that have a default route, use the interface of that: routers connect them.
The user may name another network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.network_facts import Interface
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.hosts.nodeset import fold

if TYPE_CHECKING:
    from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network

    Addressed = IPv4Interface | IPv6Interface
    Subnet = IPv4Network | IPv6Network

AUTO, NONE = "auto", "none"
"""Choose a network; use none, and set nothing for it."""
ROUTED = ""
LOOPBACK = "loopback"
"""The kind of an interface that leads to no network."""
REAL = ("physical", "infiniband", "wireless", "bond", "bridge", "vlan")
"""Kinds of interfaces that are no tunnels or overlays."""
MOST_SHOWN = 6
"""Nodes and addresses that a message shows."""


class Link(NamedTuple):
    """Where a node is on a network.

    Attributes:
        interface, address: its own there.
        speed: in Mb/s, 0 if unknown.
        virtual: a tunnel, an overlay or the like, which other interfaces carry.
    """

    interface: str
    address: str
    speed: int = 0
    virtual: bool = False


class Network(NamedTuple):
    """A network of several machines.

    Attributes:
        name: "10.99.0.0/24", or ROUTED if the machines are in different networks and reach each other by routers.
        links: the link of each node, by index.
        rails: other networks that all machines share and that are as fast.
    """

    name: str
    links: Mapping[int, Link]
    rails: tuple[Network, ...] = ()

    @property
    def speed(self) -> int:
        """The speed of the slowest link in Mb/s, 0 if one is unknown."""
        return min(link.speed for link in self.links.values())

    @property
    def virtual(self) -> bool:
        """Whether a link is virtual."""
        return any(link.virtual for link in self.links.values())


def choose_network(
    facts: Mapping[int, NodeFacts], reached: Mapping[int, str], wanted: str = AUTO, names: Mapping[int, str] = {}
) -> Network | None:
    """Return the network for these nodes, None for a single machine and where they share none.

    Args:
        reached: the addresses at which the head reached nodes, as far as it knows.
        wanted: of `--network`: AUTO, NONE, a network ("10.99.0.0/24") or the name of an interface.
        names: of the nodes, for errors.

    Raises:
        LaunchError: a machine is not on the network that is wanted, or has the same address there as another.
    """
    machines: dict[tuple[object, ...], int] = {}
    for index, one in facts.items():
        machines.setdefault(one.machine, index)
    if len(machines) < 2 or wanted == NONE:
        return None
    if wanted != AUTO:
        chosen = _wanted({index: facts[index] for index in machines.values()}, reached, wanted, names)
        return _for_nodes(Network(wanted if "/" in wanted else ROUTED, chosen), machines, facts)
    of_machine = {index: _networks(facts[index], reached.get(index, "")) for index in machines.values()}
    first, *others = of_machine.values()
    shared = {
        subnet: {index: of_one[subnet] for index, of_one in of_machine.items()}
        for subnet in first
        if all(subnet in other for other in others) and subnet.num_addresses > 1
    }
    found = [Network(str(subnet), links) for subnet, links in sorted(shared.items(), key=_order) if _differ(links)]
    if not found:
        routed = {index: _way_out(facts[index], reached.get(index, "")) for index in of_machine}
        links = {index: link for index, link in routed.items() if link is not None}
        found = [Network(ROUTED, links)] if len(links) == len(routed) and _differ(links) else []
    if not found:
        return None

    def preference(network: Network) -> tuple[int, bool, int]:
        seen = sum(link.address == reached.get(index) for index, link in network.links.items())
        return -network.speed, network.virtual, -seen

    best = min(found, key=preference)
    alike = (best.speed, best.virtual)
    rails = tuple(other for other in found if other is not best and (other.speed, other.virtual) == alike)
    return _for_nodes(best._replace(rails=rails), machines, facts)


def _for_nodes(
    network: Network, machines: Mapping[tuple[object, ...], int], facts: Mapping[int, NodeFacts]
) -> Network:
    """Return a network of machines with the link of each node: that of its machine."""
    links = {index: network.links[machines[one.machine]] for index, one in facts.items()}
    return Network(network.name, links, tuple(_for_nodes(rail, machines, facts) for rail in network.rails))


def _wanted(
    facts: Mapping[int, NodeFacts], reached: Mapping[int, str], wanted: str, names: Mapping[int, str]
) -> dict[int, Link]:
    """Return the links of the network or interface that the user named; raises LaunchError."""
    import ipaddress  # 3 ms, and not needed on one machine

    subnet = ipaddress.ip_network(wanted) if "/" in wanted else None
    links: dict[int, Link] = {}
    for index, one in facts.items():
        for interface, address in _usable(one):
            fits = interface.name == wanted if subnet is None else address.ip in subnet
            if fits and (index not in links or str(address.ip) == reached.get(index)):
                links[index] = _link(interface, address)
    twice = next((same for same in _machines_by_address(links).values() if len(same) > 1), [])
    at_fault = twice or [index for index in facts if index not in links]
    if not at_fault:
        return links
    hosts = fold(names[index] for index in at_fault)
    if twice:
        message = f"--network {wanted}: {hosts} have the same address there, {links[at_fault[0]].address}"
    else:
        kind = "running interface" if subnet is None else "address in that network"
        message = f"--network {wanted}: no {kind} on {hosts}"
    context = [f"{names[index]}: {describe_interfaces(facts[index])}" for index in at_fault[:MOST_SHOWN]]
    hint = "name a network that all nodes share (10.99.0.0/24), or leave --network out"
    raise LaunchError("network-missing", message, context=context, hint=hint)


def describe_interfaces(facts: NodeFacts) -> str:
    """Return the running interfaces of a node with their addresses, for messages."""
    texts = [f"{interface.name} {address}" for interface, address in _usable(facts)]
    return ", ".join(texts[:MOST_SHOWN]) or "no address known"


def addresses_of(texts: Iterable[str]) -> Iterator[Addressed]:
    """Yield the addresses of an interface, less those that are none: they are a node's text."""
    return (address for text in texts if (address := _parsed(text)) is not None)


@lru_cache(maxsize=1 << 12)  # the choice and the libraries' variables ask for the same ones
def _parsed(text: str) -> Addressed | None:
    import ipaddress  # 3 ms, and not needed on one machine

    try:
        return ipaddress.ip_interface(text)
    except ValueError:
        return None


def _usable(facts: NodeFacts) -> Iterator[tuple[Interface, Addressed]]:
    for interface in facts.network.interfaces:
        if interface.running and interface.kind != LOOPBACK:
            for address in addresses_of(interface.addresses):
                yield interface, address


def _link(interface: Interface, address: Addressed) -> Link:
    return Link(interface.name, str(address.ip), interface.speed, interface.kind not in REAL)


def _networks(facts: NodeFacts, reached: str) -> dict[Subnet, Link]:
    """Return the networks of a node; of two addresses in one network, that by which the head reached the node counts."""
    links: dict[Subnet, Link] = {}
    for interface, address in _usable(facts):
        if address.network not in links or str(address.ip) == reached:
            links[address.network] = _link(interface, address)
    return links


def _way_out(facts: NodeFacts, reached: str) -> Link | None:
    """Return the link by which the head reached a node, or that of its default route."""
    links = [(interface, _link(interface, address)) for interface, address in _usable(facts)]
    known = [link for _, link in links if link.address == reached]
    return next(iter([*known, *(link for interface, link in links if interface.default)]), None)


def _differ(links: Mapping[int, Link]) -> bool:
    return len(_machines_by_address(links)) == len(links)


def _machines_by_address(links: Mapping[int, Link]) -> dict[str, list[int]]:
    """Return the machines that have each address."""
    machines: dict[str, list[int]] = {}
    for index, link in links.items():
        machines.setdefault(link.address, []).append(index)
    return machines


def _order(item: tuple[Subnet, object]) -> tuple[int, int, int]:
    subnet = item[0]
    return subnet.version, int(subnet.network_address), subnet.prefixlen
