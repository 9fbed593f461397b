"""What a daemon found on its node, as the head uses it.

Pure: `NodeFacts.from_message` checks what came over the wire. The daemon's `probe` gives the same keys (docs/wire.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_CPU = 65_535
"""Highest CPU number that a node may tell."""


class Cpu(NamedTuple):
    """One hardware thread: its number, and the core, socket, NUMA node and caches (numbers unique on the machine) it is part
    of; a cache is -1 where the node has none of that level or does not tell."""

    number: int
    core: int
    socket: int
    numa: int
    l1: int = -1
    l2: int = -1
    l3: int = -1


@dataclass(frozen=True)
class Gpu:
    """One GPU that the daemon may use (after any inherited mask).

    Attributes:
        vendor: "nvidia", "amd", "intel" or "ascend".
        index: place among the vendor's GPUs that the daemon may open, from 0, before any mask: in PCI bus order, for AMD in
            the kernel's KFD order, which its driver counts by. MIG instances count one by one.
        uuid: the vendor's stable name ("GPU-...", "MIG-..."), unique on the node, or "" where it has none.
        bus_id: PCI address "0000:3b:00.0", or "".
        name: model, or "".
        numa: NUMA node of the device, -1 when unknown.
    """

    vendor: str
    index: int
    uuid: str = ""
    bus_id: str = ""
    name: str = ""
    numa: int = -1


class NodeFacts(NamedTuple):
    """Attributes:
    hostname: as the node calls itself; for messages only, never an identity.
    python: version of the daemon's interpreter, "3.11.7".
    executable: path of the daemon's interpreter.
    cpus: the hardware threads that the daemon may use (its affinity), in the order of their numbers.
    gpus: the GPUs that the daemon may use: vendor by vendor, each in `index` order or in the order of its mask.
    addresses: the node's own addresses, without loopback and link-local ones, IPv4 first, the default route's first.
    ssh_connection: (head's address, port, node's address, port) as sshd saw them, or None.
    free_port: a TCP port that was free on the node and is outside the kernel's range for outgoing connections;
        0 when none was found.
    """

    hostname: str
    python: str
    executable: str
    cpus: tuple[Cpu, ...]
    gpus: tuple[Gpu, ...]
    addresses: tuple[str, ...]
    ssh_connection: tuple[str, str, str, str] | None
    free_port: int
    notes: tuple[str, ...] = ()

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> NodeFacts:
        """Build the facts from a HELLO's `facts`; raises ValueError, KeyError or TypeError when it does not fit."""
        connection = message.get("ssh_connection")
        if connection is not None:
            client, client_port, server, server_port = (str(part) for part in connection)
            connection = (client, client_port, server, server_port)
        return cls(
            hostname=str(message["hostname"]),
            python=str(message["python"]),
            executable=str(message["executable"]),
            cpus=cpus_from_message(message["cpus"], message.get("caches", {})),
            gpus=tuple(_gpu(gpu) for gpu in message["gpus"]),
            addresses=tuple(str(address) for address in message["addresses"]),
            ssh_connection=connection,
            free_port=int(message["free_port"]),
            notes=tuple(str(note) for note in message.get("notes", ())),
        )


def cpus_from_message(rows: Sequence[Sequence[int]], shared: Mapping[str, Any]) -> tuple[Cpu, ...]:
    """Return the CPUs with their caches; `shared` says of a level "core" or "socket", or lists the CPUs of each cache."""
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


def _gpu(message: Mapping[str, Any]) -> Gpu:
    return Gpu(
        vendor=str(message["vendor"]),
        index=int(message["index"]),
        uuid=str(message["uuid"]),
        bus_id=str(message["bus_id"]),
        name=str(message["name"]),
        numa=int(message["numa"]),
    )
