"""Machines that are made up: the CPUs that one of hwloc's synthetic descriptions stands for.

Pure. `lstopo -i 'pack:2 core:4 pu:2'` shows the same machine. Understood are pack, numa, l3, l2, l1, core and pu with their
numbers, from the whole to its parts, `[numa]` for one at each object of that level, and `pu:N(indexes=0,4,...)`, the CPU
numbers in logical order. Source: hwloc's manual, "Synthetic topologies".
"""

from __future__ import annotations

import re
from itertools import product
from math import prod

from mpilaunch.errors import UsageError
from mpilaunch.hosts.node_facts import Cpu

MOST_CPUS = 1 << 14
_NAMES = {
    **dict.fromkeys(("pack", "package", "socket"), "pack"),
    **dict.fromkeys(("numa", "numanode", "node"), "numa"),
    **dict.fromkeys(("l1", "l1cache", "l1d", "l1dcache"), "l1"),
    "l2": "l2",
    "l2cache": "l2",
    "l3": "l3",
    "l3cache": "l3",
    "core": "core",
    "pu": "pu",
}
_WORD = re.compile(r"(\w{1,16}):([1-9][0-9]{0,5})(?:\(indexes=([0-9,]{1,99999})\))?", re.ASCII)
_HINT = "like 'pack:2 [numa] l3:1 core:8 pu:2', which lstopo -i shows"


def cpus_of(description: str) -> tuple[Cpu, ...]:
    """Return the CPUs of a machine in the order of their numbers; raises UsageError."""
    levels: list[tuple[str, int]] = []
    indexes: list[int] = []
    for word in description.split():
        if word.lower() in ("[numa]", "[numanode]"):
            levels.append(("numa", 1))
            continue
        match = _WORD.fullmatch(word)
        name = _NAMES.get(match[1].lower()) if match is not None else None
        if match is None or name is None:
            raise _wrong(f"'{word}' is no object and its number")
        if name in dict(levels):
            raise _wrong(f"'{word}' is there twice")
        levels.append((name, int(match[2])))
        if match[3]:
            indexes = [int(number) for number in match[3].split(",") if number]
    if "pu" not in dict(levels) and levels:
        levels.append(("pu", 1))
    if "core" not in dict(levels):
        raise _wrong("it has no core:N")
    count = prod(number for _, number in levels)
    if count > MOST_CPUS:
        raise _wrong(f"it has {count:,} CPUs, more than the {MOST_CPUS:,} allowed")
    if indexes and sorted(indexes) != list(range(count)):
        raise _wrong(f"its indexes are not the numbers from 0 to {count - 1}")
    objects_of: dict[str, dict[tuple[int, ...], int]] = {name: {} for name, _ in levels}
    cpus = []
    for place, path in enumerate(product(*(range(number) for _, number in levels))):
        numbers = {}
        for depth, (name, _) in enumerate(levels):
            known = objects_of[name]
            numbers[name] = known.setdefault(path[: depth + 1], len(known))
        caches = [numbers.get(name, -1) for name in ("l1", "l2", "l3")]
        number = indexes[place] if indexes else place
        cpus.append(Cpu(number, numbers["core"], numbers.get("pack", 0), numbers.get("numa", 0), *caches))
    return tuple(sorted(cpus, key=lambda cpu: cpu.number))


def _wrong(reason: str) -> UsageError:
    return UsageError("topology", f"--topology: {reason}", hint=_HINT)
