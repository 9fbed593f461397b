"""The facts of nodes that never were."""

from __future__ import annotations

from mpilaunch.hosts.network_facts import Interface, NetworkFacts, Port
from mpilaunch.hosts.node_facts import NodeFacts


def interface(name: str, *addresses: str, speed: int = 0, default: bool = False, running: bool = True) -> Interface:
    """An interface whose kind follows from its name."""
    kind = "loopback" if name == "lo" else "bridge" if name.startswith(("docker", "br", "virbr", "cni")) else "physical"
    return Interface(name, kind, running, speed, 1500, default, addresses)


def node_facts(
    hostname: str,
    *interfaces: Interface | str,
    seen_from: str = "",
    seen_at: str = "",
    free_port: int = 31000,
    name_at: tuple[str, ...] = (),
    ports: tuple[Port, ...] = (),
) -> NodeFacts:
    """Facts of a node; an address stands for an interface that has it alone, eth0 first, by which the default route leaves.

    `seen_from` and `seen_at` are the ends of the head's ssh connection.
    """
    rows = [
        one if isinstance(one, Interface) else interface(f"eth{number}", one, default=not number)
        for number, one in enumerate(interfaces)
    ]
    connection = (seen_from or "10.0.0.9", "50000", seen_at or "10.0.0.1", "22") if seen_from or seen_at else None
    network = NetworkFacts(tuple(rows), name_at, ports)
    return NodeFacts(hostname, "3.11.7", "/usr/bin/python3", (), (), network, connection, free_port)
