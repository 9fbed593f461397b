"""Which hardware threads this process may use, and the core, socket and NUMA node of each, from /sys.

It reads, never sets. One file per core and two per socket are read, not four per thread: a node with 256 threads answers
in about a millisecond. A missing /sys makes each thread its own core on one socket: less is known, nothing fails.
"""

from __future__ import annotations

import os

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


def usable_cpus(root: str = "/", affinity: set[int] | None = None) -> list[list[int]]:
    """List `[number, core, socket, numa]` of every hardware thread in the affinity, in the order of their numbers.

    A core is named by its lowest thread, as the kernel's `core_id` repeats on each socket. A cgroup's CPU quota is time, not
    a set of CPUs, and plays no part.
    """
    numbers = sorted(os.sched_getaffinity(0) if affinity is None else affinity)
    # The second name of each is the one that kernels before 5.2 know.
    cores = _lowest_siblings(root, numbers, ("core_cpus_list", "thread_siblings_list"))
    packages = _lowest_siblings(root, numbers, ("package_cpus_list", "core_siblings_list"))
    sockets = {lowest: _socket_number(root, lowest) for lowest in set(packages.values())}
    numa = _numa_nodes(root)
    return [[number, cores[number], sockets[packages[number]], numa.get(number, 0)] for number in numbers]


def read_text(path: str) -> str:
    """Read a small file of /proc or /sys whole; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts: list[bytes] = []
        while True:
            part = os.read(descriptor, 65536)
            if not part:
                return b"".join(parts).decode("utf-8", "replace")
            parts.append(part)
    finally:
        os.close(descriptor)


def parse_cpu_list(text: str) -> list[int]:
    """Turn the kernel's "0-3,8" into numbers; raises ValueError."""
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
            siblings = {number, *_siblings(root, number, names)}
            lowest.update(dict.fromkeys(siblings, min(siblings)))
    return lowest


def _siblings(root: str, number: int, names: tuple[str, str]) -> list[int]:
    for name in names:
        try:
            return parse_cpu_list(read_text(os.path.join(root, "%s/cpu%d/topology/%s" % (_CPUS, number, name))))
        except (OSError, ValueError):
            continue
    return []


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
            try:
                members = parse_cpu_list(read_text(os.path.join(root, _NODES, name, "cpulist")))
            except (OSError, ValueError):
                continue
            nodes.update(dict.fromkeys(members, int(name[4:])))
    return nodes
