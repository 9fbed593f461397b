"""Facts about a node: its CPUs, GPUs, network and Python, as its daemon reports them.

Pure: `NodeFacts.from_message` checks a message of the daemon; docs/wire.md lists its keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mpilaunch.hosts.network_facts import NetworkFacts

MAX_CPU = 65_535
"""Highest CPU number that a node may report."""


class Cpu(NamedTuple):
    """One hardware thread, and the numbers of its core, socket, NUMA node and caches, unique on the machine; -1 for none."""

    number: int
    core: int
    socket: int
    numa: int
    l1: int = -1
    l2: int = -1
    l3: int = -1


class Gpu(NamedTuple):
    """One GPU that the daemon may use (after any inherited mask).

    Attributes:
        vendor: "nvidia", "amd", "intel" or "ascend".
        index: number among the vendor's GPUs that the daemon may open, from 0, before any mask: in PCI bus order, for AMD in
            the order of the kernel's KFD, as its driver counts. Each MIG instance counts.
        uuid: the vendor's stable name ("GPU-...", "MIG-..."), unique on the node, or "".
        bus_id, name: PCI address "0000:3b:00.0", and model; "" if unknown.
        numa: NUMA node of the device, -1 if unknown.
    """

    vendor: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nothing calls
    uuid: str = ""
    bus_id: str = ""
    name: str = ""
    numa: int = -1


class NodeFacts(NamedTuple):
    """The facts of one node.

    Attributes:
        hostname: the node's own name; for messages only, never an identity.
        python, executable: version ("3.11.7") and path of the daemon's interpreter.
        cpus: the hardware threads in the daemon's affinity, in numerical order.
        gpus: the GPUs that the daemon may use, by vendor, then in the order of `index` or of the vendor's mask.
        network: its interfaces and addresses.
        ssh_connection: (head's address, port, node's address, port) as sshd saw them, or None.
        free_port: the first of several free TCP ports outside the kernel's range for outgoing connections, 0 if there are none.
        notes: remarks of the daemon for the user.
    """

    hostname: str
    python: str
    executable: str
    cpus: tuple[Cpu, ...]
    gpus: tuple[Gpu, ...]
    network: NetworkFacts
    ssh_connection: tuple[str, str, str, str] | None
    free_port: int
    notes: tuple[str, ...] = ()

    @property
    def machine(self) -> tuple[object, ...]:
        """The same value for nodes that are the same machine."""
        return self.hostname, self.network.addresses

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> NodeFacts:
        """Return the facts of a HELLO message, whose schema has been checked; raises ValueError, KeyError or TypeError."""
        connection = message.get("ssh_connection")
        if connection is not None:
            client, client_port, server, server_port = (str(part) for part in connection)
            connection = (client, client_port, server, server_port)
        return cls(
            hostname=message["hostname"],
            python=message["python"],
            executable=message["executable"],
            cpus=cpus_from_message(message["cpus"], message.get("caches", {})),
            gpus=tuple(Gpu(**{name: gpu[name] for name in Gpu._fields}) for gpu in message["gpus"]),
            network=NetworkFacts.from_message(message["network"]),
            ssh_connection=connection,
            free_port=message["free_port"],
            notes=tuple(map(str, message.get("notes", ()))),
        )


def cpus_from_message(rows: Sequence[Sequence[int]], shared: Mapping[str, Any]) -> tuple[Cpu, ...]:
    """Return the CPUs with their caches; `shared` maps a level to "core", "socket", or the CPU list of each cache."""
    caches = [_cache_of_cpu(rows, shared.get(level)) for level in ("1", "2", "3")]
    return tuple(Cpu(*(int(part) for part in row), *(cache.get(row[0], -1) for cache in caches)) for row in rows)


def _cache_of_cpu(rows: Sequence[Sequence[int]], shared: Any) -> dict[int, int]:
    if shared is None:
        return {}
    if shared in ("core", "socket"):
        column = 1 if shared == "core" else 2
        return {row[0]: row[column] for row in rows}
    cache_of: dict[int, int] = {}
    count = 0
    for place, text in enumerate(shared):
        for first, _, last in (part.partition("-") for part in str(text).split(",")):
            if int(last or first) > MAX_CPU:
                raise ValueError(f"CPU number {last or first}")
            count += int(last or first) - int(first) + 1
            if count > MAX_CPU + 1:
                raise ValueError(f"caches of more than {MAX_CPU + 1} CPUs")
            cache_of.update(dict.fromkeys(range(int(first), int(last or first) + 1), place))
    return cache_of
