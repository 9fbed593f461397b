"""The hardware threads that this process may use, and the core, socket, NUMA node and caches of each, from /sys.

This module changes nothing. It reads one file per core, two per socket and one per shared cache, instead of seven per thread:
256 threads take about a millisecond. Without /sys each thread counts as a core of one socket, without caches.
"""

from __future__ import annotations

import os

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


def usable_cpus(root: str = "/", affinity: set[int] | None = None) -> list[list[int]]:
    """List `[number, core, socket, numa]` of every hardware thread in the affinity, in the order of their numbers.

    A core is identified by its lowest thread, as the kernel's `core_id` repeats on each socket. A cgroup's CPU quota limits
    time, not the set of CPUs, and is not considered.
    """
    numbers = sorted(os.sched_getaffinity(0) if affinity is None else affinity)
    # The second names are those of kernels before 5.2.
    cores = _lowest_siblings(root, numbers, ("core_cpus_list", "thread_siblings_list"))
    packages = _lowest_siblings(root, numbers, ("package_cpus_list", "core_siblings_list"))
    sockets = {lowest: _socket_number(root, lowest) for lowest in set(packages.values())}
    numa = _numa_nodes(root)
    return [[number, cores[number], sockets[packages[number]], numa.get(number, 0)] for number in numbers]


def shared_caches(cpus: list[list[int]], root: str = "/") -> dict[str, object]:
    """Return for the levels "1" to "3" which of the CPUs of `usable_cpus` share a data cache.

    The value is "core" or "socket" where each core or socket has its own cache, else the kernel's lists ("0-7,64-71") of
    all caches. Levels that do not exist, or that /sys does not show, are left out.
    """
    if not cpus:
        return {}
    usable = {cpu[0] for cpu in cpus}
    cores, sockets = _groups(cpus, 1), _groups(cpus, 2)
    caches: dict[str, object] = {}
    for level, index in _cache_indices(root, cpus[0][0]).items():
        try:
            # Chips with two kinds of core number one kind first: if the first and the last core have their own, all have.
            ends = (cores[0], cores[-1])
            if all(usable & _sharers(root, min(core), index)[0] == core for core in ends):
                caches[level] = "core"
                continue
            members_of: dict[str, set[int]] = {}
            seen: set[int] = set()
            for number in sorted(usable):
                if number not in seen:
                    members, text = _sharers(root, number, index)
                    members_of[text] = usable & members
                    seen |= members | {number}
            groups = sorted(map(sorted, members_of.values()))
            same = [name for name, own in (("core", cores), ("socket", sockets)) if sorted(map(sorted, own)) == groups]
            caches[level] = same[0] if same else list(members_of)
        except (OSError, ValueError):
            continue  # leave out an incomplete level
    return caches


def read_text(path: str) -> str:
    """Read a small file of /proc or /sys; raises OSError."""
    with open(path, "rb", 0) as file:
        return file.read().decode("utf-8", "replace")


def parse_cpu_list(text: str) -> list[int]:
    """Parse a list of the kernel, like "0-3,8"; raises ValueError."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def _lowest_siblings(root: str, numbers: list[int], names: tuple[str, str]) -> dict[int, int]:
    """Map each CPU to the lowest CPU that shares its core or package; each group's list is read once."""
    lowest: dict[int, int] = {}
    for number in numbers:
        if number not in lowest:
            folder = os.path.join(root, "%s/cpu%d/topology" % (_CPUS, number))
            siblings = {number, *(_cpu_list(os.path.join(folder, names[0])) or _cpu_list(os.path.join(folder, names[1])))}
            lowest.update(dict.fromkeys(siblings, min(siblings)))
    return lowest


def _cpu_list(path: str) -> list[int]:
    """Return the CPUs in a file, none when it cannot be read."""
    try:
        return parse_cpu_list(read_text(path))
    except (OSError, ValueError):
        return []


def _groups(cpus: list[list[int]], column: int) -> list[set[int]]:
    """List the numbers of the CPUs that have the same value in a column, in the order of their lowest."""
    groups: dict[int, set[int]] = {}
    for cpu in cpus:
        groups.setdefault(cpu[column], set()).add(cpu[0])
    return list(groups.values())


def _cache_indices(root: str, number: int) -> dict[str, str]:
    """Map the levels "1", "2" and "3" to the names of their folders for a CPU, without instruction caches."""
    indices: dict[str, str] = {}
    try:
        names = sorted(os.listdir(os.path.join(root, "%s/cpu%d/cache" % (_CPUS, number))))
        for name in names:
            if name.startswith("index"):
                place = os.path.join(root, "%s/cpu%d/cache/%s" % (_CPUS, number, name))
                level = read_text(os.path.join(place, "level")).strip()
                if level in ("1", "2", "3") and read_text(os.path.join(place, "type")).strip() != "Instruction":
                    indices[level] = name
    except OSError:
        pass
    return indices


def _sharers(root: str, number: int, index: str) -> tuple[set[int], str]:
    """Return the CPUs that share a cache of this CPU, and the kernel's list of them; raises OSError or ValueError."""
    text = read_text(os.path.join(root, "%s/cpu%d/cache/%s/shared_cpu_list" % (_CPUS, number, index))).strip()
    return set(parse_cpu_list(text)), text


def _socket_number(root: str, number: int) -> int:
    try:
        return int(read_text(os.path.join(root, "%s/cpu%d/topology/physical_package_id" % (_CPUS, number))))
    except (OSError, ValueError):
        return 0


def _numa_nodes(root: str) -> dict[int, int]:
    nodes: dict[int, int] = {}
    try:
        names = os.listdir(os.path.join(root, _NODES))
    except OSError:
        return nodes
    for name in names:
        if name.startswith("node") and name[4:].isdigit():
            nodes.update(dict.fromkeys(_cpu_list(os.path.join(root, _NODES, name, "cpulist")), int(name[4:])))
    return nodes
