"""Chooses the network that the ranks of a job use: one that all of its machines share, each with an address of its own.

Pure: the facts of the nodes in, a network or nothing out. Of several, the fastest is chosen; then the one by which the head
reached most machines; then the first by address. A network that one machine lacks, or on which two machines have the same
address, as bridges for containers do, is never chosen. Where machines share no network, those that the head reached, or that
have a default route, use the interface of that: routers connect them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from mpilaunch.hosts.network_facts import Interface
from mpilaunch.hosts.node_facts import NodeFacts

if TYPE_CHECKING:
    from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network

    Addressed = IPv4Interface | IPv6Interface
    Subnet = IPv4Network | IPv6Network

ROUTED = ""


class Link(NamedTuple):
    """Where a node is on a network: its interface, its address there, and the speed in Mb/s, 0 if unknown."""

    interface: str
    address: str
    speed: int = 0


class Network(NamedTuple):
    """A network of several machines.

    Attributes:
        name: "10.99.0.0/24", or ROUTED if the machines are in different networks and reach each other by routers.
        links: the link of each node, by index.
        rails: the names of other networks that all machines share, no slower than this one.
    """

    name: str
    links: Mapping[int, Link]
    rails: tuple[str, ...] = ()

    @property
    def speed(self) -> int:
        """The speed of the slowest link in Mb/s, 0 if one is unknown."""
        return min(link.speed for link in self.links.values())


def choose_network(facts: Mapping[int, NodeFacts], reached: Mapping[int, str]) -> Network | None:
    """Return the network for these nodes, None for a single machine and where they share none.

    `reached` has the addresses at which the head reached nodes, as far as it knows.
    """
    machines = {one.machine: index for index, one in reversed(list(facts.items()))}
    if len(machines) < 2:
        return None
    of_machine = {index: _networks(facts[index], reached.get(index, "")) for index in machines.values()}
    first, *others = of_machine.values()
    shared = {
        subnet: {index: of_one[subnet] for index, of_one in of_machine.items()}
        for subnet in first
        if all(subnet in other for other in others) and subnet.num_addresses > 1
    }
    found = [Network(str(subnet), links) for subnet, links in sorted(shared.items(), key=_by_address) if _differ(links)]
    if not found:
        routed = {index: _way_out(facts[index], reached.get(index, "")) for index in of_machine}
        links = {index: link for index, link in routed.items() if link is not None}
        found = [Network(ROUTED, links)] if len(links) == len(routed) and _differ(links) else []
    if not found:
        return None

    def preference(network: Network) -> tuple[int, int]:
        seen = sum(link.address == reached.get(index) for index, link in network.links.items())
        return -network.speed, -seen

    best = min(found, key=preference)
    rails = tuple(other.name for other in found if other is not best and other.speed == best.speed)
    return Network(best.name, {index: best.links[machines[one.machine]] for index, one in facts.items()}, rails)


def addresses_of(interface: Interface) -> Iterator[Addressed]:
    """Yield the addresses of an interface, less those that are none: they are a node's text."""
    import ipaddress  # 3 ms, and not needed on one machine

    for text in interface.addresses:
        try:
            yield ipaddress.ip_interface(text)
        except ValueError:
            continue


def _usable(facts: NodeFacts) -> Iterator[tuple[Interface, Addressed]]:
    for interface in facts.network.interfaces:
        if interface.running and interface.kind != "loopback":
            for address in addresses_of(interface):
                yield interface, address


def _networks(facts: NodeFacts, reached: str) -> dict[Subnet, Link]:
    """Return the networks of a node; of two addresses in one network, that by which the head reached the node counts."""
    links: dict[Subnet, Link] = {}
    for interface, address in _usable(facts):
        if address.network not in links or str(address.ip) == reached:
            links[address.network] = Link(interface.name, str(address.ip), interface.speed)
    return links


def _way_out(facts: NodeFacts, reached: str) -> Link | None:
    """Return the link by which the head reached a node, or that of its default route."""
    links = [(interface, Link(interface.name, str(address.ip), interface.speed)) for interface, address in _usable(facts)]
    known = [link for _, link in links if link.address == reached]
    return next(iter([*known, *(link for interface, link in links if interface.default)]), None)


def _differ(links: Mapping[int, Link]) -> bool:
    return len({link.address for link in links.values()}) == len(links)


def _by_address(item: tuple[Subnet, object]) -> tuple[int, int, int]:
    subnet = item[0]
    return subnet.version, int(subnet.network_address), subnet.prefixlen
