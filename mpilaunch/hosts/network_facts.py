"""Facts about a node's network, as its daemon reports them: interfaces, ports of InfiniBand, the addresses of its own name.

Pure: `NetworkFacts.from_message` takes a message of the daemon, whose schema has been checked; docs/wire.md lists its keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MOST = 64
"""Interfaces, addresses of one, and ports that are taken from a node."""
LONGEST = 15
"""Characters in the name of an interface of Linux."""


class Interface(NamedTuple):
    """An interface that is up and has an address.

    Attributes:
        name: "eth0".
        kind: "physical", "infiniband", "wireless", "virtual", "loopback", or the kernel's word ("bridge", "bond", "vlan").
        running: a cable or another end is there.
        speed: in Mb/s, 0 if unknown.
        mtu: in bytes.
        default: the default route leaves through it.
        addresses: with their prefixes, "10.0.0.5/24", IPv4 first; no loopback or link-local ones. Not checked: a node's text.
    """

    name: str
    kind: str
    running: bool
    speed: int
    mtu: int
    default: bool
    addresses: tuple[str, ...]


class Port(NamedTuple):
    """A port of InfiniBand or RoCE.

    Attributes:
        name: "mlx5_0:1".
        layer: "InfiniBand" or "Ethernet".
        active: it has a connection.
        rate: in Gb/s.
        numa: NUMA node of the device, -1 if unknown.
        path: the bridges from the root of PCI to the device: "pci0000:3a/0000:3a:01.0/0000:3b:00.0"; "" if unknown.
    """

    name: str
    layer: str
    active: bool
    rate: int
    numa: int = -1
    path: str = ""


class NetworkFacts(NamedTuple):
    """The network of a node.

    Attributes:
        interfaces: in the order of the kernel, in which libraries see them.
        name_at: addresses that /etc/hosts gives the node's own name; none if it must be asked for elsewhere.
        ports: of InfiniBand and RoCE.
        settings: names of variables by which the node's environment or a library's file chooses a network.
        gpu_paths: as `Port.path`, of each GPU by its PCI address; empty on a node without ports.
    """

    interfaces: tuple[Interface, ...] = ()
    name_at: tuple[str, ...] = ()
    ports: tuple[Port, ...] = ()
    settings: tuple[str, ...] = ()
    gpu_paths: Mapping[str, str] = {}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> NetworkFacts:
        """Return the facts of a message; raises TypeError or KeyError."""
        rows = [Interface(*row) for row in message["interfaces"][:MOST]]
        return cls(
            interfaces=tuple(one._replace(name=one.name[:LONGEST], addresses=tuple(one.addresses[:MOST])) for one in rows),
            name_at=tuple(message["name_at"][:MOST]),
            ports=tuple(Port(*row) for row in message["ports"][:MOST]),
            settings=tuple(message["settings"][:MOST]),
            gpu_paths=message["gpu_paths"],
        )

    @property
    def addresses(self) -> tuple[str, ...]:
        """The node's addresses, IPv4 first, those of the default route's interface first."""
        # An address in no network (/32 addresses of clouds) is more likely reachable than one on a bridge for containers.
        rows = [(address.partition("/"), one.default) for one in self.interfaces for address in one.addresses]
        rows.sort(key=lambda row: (":" in row[0][0], not row[1], row[0][2] not in ("32", "128")))
        return tuple(dict.fromkeys(parts[0] for parts, _ in rows))
