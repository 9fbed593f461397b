"""The places inside a node: which objects (cores, caches, sockets...) its CPUs form, and in what order ranks take them.

Pure. A rank has an object of its node by `map_by`: it is dealt to the objects in turn, or `per_object` to each one before the
next. This is the order of mapping. The order of the ranks' numbers is another one when `rank_by` names objects: then the
objects of that kind take turns, and each gives the next number to the first place in it that has none.

Objects come as hwloc counts them (its logical order): by socket, then NUMA node, cache, core and number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.node_facts import Cpu

if TYPE_CHECKING:
    from typing import TypeVar

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
"""Kind of object -> what tells the object that a CPU belongs to, -1 for none."""


def objects(cpus: Iterable[Cpu], kind: str) -> list[Object]:
    """Return the objects of a kind that these CPUs form, in logical order; none where the node does not tell of any."""
    found: dict[int, list[Cpu]] = {}
    object_of = OBJECTS[kind]
    for cpu in sorted(cpus, key=lambda cpu: (cpu.socket, cpu.numa, cpu.l3, cpu.l2, cpu.l1, cpu.core, cpu.number)):
        if (number := object_of(cpu)) >= 0:
            found.setdefault(number, []).append(cpu)
    return [tuple(members) for members in found.values()]


def objects_of(node: str, cpus: Iterable[Cpu], kind: str) -> list[Object]:
    """Return the objects of a node that has this name; raises LaunchError when it does not tell of any."""
    if not (found := objects(cpus, kind)):
        raise LaunchError(
            "object-unknown",
            f"{node} tells of no {kind}",
            hint="name another object, like core or socket; virtual machines often hide their caches",
        )
    return found


def assign_objects(found: int, count: int, per_object: int | None) -> list[int]:
    """Return which of the objects found each of `count` places has, in the order of mapping."""
    each = per_object or 1
    return [place // each % found for place in range(count)]


def round_robin(turns: Iterable[Iterable[_Item]]) -> Iterator[_Item]:
    """Return the items of the sequences, the next of each in turn, and each item once."""
    given: set[_Item] = set()
    left = [iter(items) for items in turns]
    while left:
        going = []
        for items in left:
            taken = next((item for item in items if item not in given), None)
            if taken is not None:
                given.add(taken)
                going.append(items)
                yield taken
        left = going


def overlapping(places: Sequence[Object], one: Object) -> list[int]:
    """Return which of the places, each an object, have a CPU of this object."""
    numbers = {cpu.number for cpu in one}
    return [place for place, members in enumerate(places) if any(cpu.number in numbers for cpu in members)]
