"""Where other machines reach each node. Pure: the nodes' facts in, addresses out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mpilaunch.hosts.node_facts import NodeFacts


def reached_addresses(facts: Mapping[int, NodeFacts], here: Collection[int]) -> dict[int, str]:
    """Return the addresses that have carried an ssh connection of this launch, by node; `here` are the nodes of this machine.

    Loopback and link-local addresses do not count, as other nodes cannot reach them.
    """
    reached: dict[int, str] = {}
    seen = [_routable(one.ssh_connection[0]) for index, one in facts.items() if index not in here and one.ssh_connection]
    for index, one in facts.items():
        own = one.network.addresses
        if index in here:
            # Behind a jump host the nodes saw that host's address, so only the head's own addresses count, if known.
            reached[index] = next((address for address in seen if address in own or not own), "")
        elif one.ssh_connection:
            reached[index] = _routable(one.ssh_connection[2])
    return reached


def address_of(facts: NodeFacts, on_network: str, reached: str, name: str) -> str:
    """Return the address of a node: on the network that all share, as the head reached it, or the first of its own.

    Args:
        on_network, reached: "" if there is none.
        name: the node's name, of which nothing but that is known without an address.
    """
    return next(address for address in (on_network, reached, *facts.network.addresses, name) if address)


def _routable(text: str) -> str:
    """Return the address without its zone (`%eth0`), or "" if other nodes cannot reach it."""
    import ipaddress  # 3 ms, and not needed on one machine

    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return "" if address.is_loopback or address.is_link_local or address.is_unspecified else str(address)
