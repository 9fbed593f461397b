"""The objects of a node (cores, caches, sockets...), and the order in which ranks are assigned to them.

Pure. `map_by` assigns the ranks of a node to its objects in turn, or `per_object` ranks to each before the next. If `rank_by`
names objects, the ranks are numbered in another order: each object of that kind in turn gives the next number to the first of
its ranks without one. Objects are in hwloc's logical order: by socket, then NUMA node, cache, core and number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.node_facts import Cpu

_Item = TypeVar("_Item", bound=Hashable)

Object = tuple[Cpu, ...]
"""The CPUs of one object, in logical order."""

OBJECTS: Mapping[str, Callable[[Cpu], int]] = {
    "hwthread": lambda cpu: cpu.number,
    "core": lambda cpu: cpu.core,
    "l1cache": lambda cpu: cpu.l1,
    "l2cache": lambda cpu: cpu.l2,
    "l3cache": lambda cpu: cpu.l3,
    "numa": lambda cpu: cpu.numa,
    "socket": lambda cpu: cpu.socket,
    "machine": lambda cpu: 0,
}
"""Kind of object -> the function that returns the object of a CPU, -1 for none."""


def objects(cpus: Iterable[Cpu], kind: str) -> list[Object]:
    """Return the objects of a kind that these CPUs form, in logical order; empty if the node reports none."""
    members_of: dict[int, list[Cpu]] = {}
    object_of = OBJECTS[kind]
    for cpu in sorted(cpus, key=lambda cpu: (cpu.socket, cpu.numa, cpu.l3, cpu.l2, cpu.l1, cpu.core, cpu.number)):
        if (number := object_of(cpu)) >= 0:
            members_of.setdefault(number, []).append(cpu)
    return [tuple(members) for members in members_of.values()]


def objects_of(node: str, cpus: Iterable[Cpu], kind: str) -> list[Object]:
    """Return the objects of the node called `node`; raises LaunchError if it reports none."""
    if not (reported := objects(cpus, kind)):
        hint = "name another object, like core or socket; virtual machines often hide their caches"
        raise LaunchError("object-unknown", f"{node} reports no {kind}", hint=hint)
    return reported


def assign_objects(object_count: int, ranks: int, per_object: int | None) -> list[int]:
    """Return the index of the object of each of `ranks` ranks, in the order of mapping."""
    each = per_object or 1
    return [rank // each % object_count for rank in range(ranks)]


def round_robin(sequences: Iterable[Iterable[_Item]]) -> Iterator[_Item]:
    """Yield the next item of each sequence in turn, leaving out repeated items."""
    seen: set[_Item] = set()
    active = [iter(items) for items in sequences]
    while active:
        remaining = []
        for items in active:
            item = next((item for item in items if item not in seen), None)
            if item is not None:
                seen.add(item)
                remaining.append(items)
                yield item
        active = remaining


def overlapping(candidates: Sequence[Object], target: Object) -> list[int]:
    """Return the indices of the candidates that share a CPU with the target."""
    numbers = {cpu.number for cpu in target}
    return [index for index, members in enumerate(candidates) if any(cpu.number in numbers for cpu in members)]
