"""MASTER_ADDR, and the addresses of the other nodes. Pure: the nodes' facts in, an address out."""

from __future__ import annotations

from collections.abc import Sequence

from mpilaunch.hosts.node_facts import NodeFacts


def choose_master_address(
    rank0_node_facts: NodeFacts, other_facts: Sequence[NodeFacts], rank0_is_head: bool, node_name: str
) -> str:
    """Return an address of rank 0's node that the other nodes reach; `node_name` is that node's name as the user wrote it."""
    facts = rank0_node_facts
    elsewhere = [other for other in other_facts if (other.hostname, other.addresses) != (facts.hostname, facts.addresses)]
    return address_of(facts, elsewhere, rank0_is_head, node_name) if elsewhere else "127.0.0.1"


def address_of(facts: NodeFacts, elsewhere: Sequence[NodeFacts], is_head: bool, node_name: str) -> str:
    """Return an address of a node that those on other machines reach; `elsewhere` counts only for the head's node.

    An address that has carried an ssh connection of this launch, IPv4 or IPv6, is preferred to the node's own addresses, of
    which IPv4 comes first (`NodeFacts.addresses`). Other nodes cannot reach loopback and link-local addresses.
    """
    candidates: list[str] = []
    if is_head:
        # Behind a jump host the nodes saw that host's address, so only the head's own addresses count, if known.
        seen = [_routable(other.ssh_connection[0]) for other in elsewhere if other.ssh_connection]
        own = set(facts.addresses)
        candidates += [address for address in seen if address in own or not own]
    elif facts.ssh_connection:
        candidates.append(_routable(facts.ssh_connection[2]))
    candidates += facts.addresses
    candidates.append(facts.hostname if is_head else node_name)
    return next(address for address in candidates if address)


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
