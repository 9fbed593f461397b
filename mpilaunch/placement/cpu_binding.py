"""Binding to CPUs: which of its node's hardware threads each rank may use.

Pure: the ranks of one node, its CPUs and a policy give a set of CPU numbers per rank, or an error that names node and numbers.
CPUs that a slot names always bind, and the policy then chooses among them; ranks whose slots name none share the others.

Each rank is mapped to a place first: an object of the node when `map_by` names one, else the node as a whole. Inside its place
it is bound to the `bind_to` objects that the fewest ranks have, the first of equals; a `bind_to` object that is larger than the
place is the one around it. Ranks that are mapped to the node as a whole get consecutive objects, and share them in blocks:
neighbours stay together, and near GPUs that are listed by bus. A core or a hardware thread is one rank's own, unless overload
is allowed; larger objects may be shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.allocation import Node
from mpilaunch.hosts.node_facts import Cpu, Gpu
from mpilaunch.hosts.nodeset import fold_numbers
from mpilaunch.placement.mapping import Placement
from mpilaunch.placement.topology import OBJECTS, Object, assign_objects, objects, objects_of, overlapping, round_robin
from mpilaunch.text import plural


class Cores(NamedTuple):
    """Cores as a rankfile names them, by logical number: `numbers` of a `socket`, of the whole node when that is None; all of
    the socket when there are no numbers."""

    socket: int | None
    numbers: tuple[int, ...] = ()


class CpuPolicy(NamedTuple):
    """What the user asked for.

    Attributes:
        bind_to: "none", an object (`places.OBJECTS`), "cpu-list" (all that `cpu_list` names), "user" (see `lists`).
        cpus_per_rank: how many of these objects each rank gets: mpirun's PE=n with cores or hardware threads, Hydra's numa:2.
        map_by: the object that each rank is mapped to; "slot" for the node as a whole.
        per_object: this many ranks on each `map_by` object before the next; None deals them in turn.
        rank_by: the objects that take turns to number the ranks of a node, "fill" for one object before the next; None follows
            the order of mapping.
        hwthreads: hardware threads count as the CPUs, not cores.
        overload: ranks may share a core or hardware thread.
        if_supported: on a node that has no such objects the ranks stay unbound.
        cpu_list: logical numbers of the only cores that are used; empty for all.
        ordered: "cpu-list" gives each rank one of the list, not all.
        lists: with "user" the CPU numbers of each rank of a node, over and over; empty for each CPU in the order of numbers.
        chosen: the cores of each rank by its number, from a rankfile; empty when there is none.
    """

    bind_to: str = "none"
    cpus_per_rank: int = 1
    map_by: str = "slot"
    per_object: int | None = None
    rank_by: str | None = None
    hwthreads: bool = False
    overload: bool = False
    if_supported: bool = False
    cpu_list: tuple[int, ...] = ()
    ordered: bool = False
    lists: tuple[tuple[int, ...], ...] = ()
    chosen: tuple[tuple[Cores, ...], ...] = ()


def bind_cpus(
    node: Node, placements: Sequence[Placement], cpus: Sequence[Cpu], own: Mapping[int, Gpu], policy: CpuPolicy
) -> dict[int, tuple[int, ...] | None]:
    """Return the CPU numbers of each rank of a node, None for a rank that is not bound; raises LaunchError.

    Args:
        placements: the ranks of the node, in the order of their numbers.
        own: the GPU that a rank is likely to compute on; a rank that is bound to a NUMA node gets that of its GPU.
    """
    named = {number for placement in placements for number in node.slots[placement.slot].cpus or ()}
    usable = frozenset(cpu.number for cpu in cpus)
    rest = usable - named
    sharing: dict[frozenset[int], list[Placement]] = {}
    for placement in placements:
        wanted = node.slots[placement.slot].cpus
        if missing := sorted(set(wanted or ()) - usable):
            raise LaunchError(
                "cpu-unknown",
                f"rank {placement.rank} may not use CPU {fold_numbers(missing)} on {node.name}",
                context=[_cpus_of(node, cpus)],
                hint=f"name some of these for slot {placement.slot} ({node.origin or node.name})",
            )
        sharing.setdefault(rest if wanted is None else frozenset(wanted), []).append(placement)
    bound: dict[int, tuple[int, ...] | None] = {}
    for numbers, ranks in sharing.items():
        if policy.bind_to == "none":
            bound |= {p.rank: None if node.slots[p.slot].cpus is None else tuple(sorted(numbers)) for p in ranks}
            continue
        try:
            sets = _bind(node, ranks, [cpu for cpu in cpus if cpu.number in numbers], own, policy)
        except LaunchError as error:
            if error.reference != "object-unknown" or not policy.if_supported:
                raise
            bound |= {placement.rank: None for placement in ranks}
        else:
            bound |= {p.rank: tuple(sorted(set(members))) for p, members in zip(ranks, sets, strict=True)}
    return bound


def picture(bound: Iterable[int], cpus: Iterable[Cpu]) -> str:
    """Draw a binding as mpirun does: a bracket for each socket, a slash between cores, B for a bound hardware thread."""
    numbers = set(bound)
    sockets = []
    for socket in objects(cpus, "socket"):
        cores = ("".join("B" if cpu.number in numbers else "." for cpu in core) for core in objects(socket, "core"))
        sockets.append(f"[{'/'.join(cores)}]")
    return "".join(sockets)


# The CPUs of ranks that share a set of them


def _bind(
    node: Node, ranks: Sequence[Placement], cpus: Sequence[Cpu], own: Mapping[int, Gpu], policy: CpuPolicy
) -> list[list[int]]:
    """Return the CPU numbers of each of these ranks, which share these CPUs."""
    if policy.chosen:
        return [_numbers(_choose(node, place.rank, cpus, policy)) for place in ranks]
    if policy.bind_to == "user":
        return _as_listed(node, ranks, cpus, policy)
    if policy.cpu_list:
        listed = _logical(node, "--cpu-set", cpus, policy.cpu_list, policy)
        if policy.bind_to == "cpu-list" and not policy.ordered:
            return [_numbers(listed) for _ in ranks]
        if policy.bind_to == "cpu-list":
            if len(ranks) > len(listed) and not policy.overload:
                raise _overload(node, len(listed), _unit(policy), len(ranks), 1)
            return [_numbers([listed[place % len(listed)]]) for place in range(len(ranks))]
        cpus = [cpu for members in listed for cpu in members]
    if policy.map_by in OBJECTS:
        return _bind_in_places(node, len(ranks), cpus, policy)
    return _bind_in_blocks(node, ranks, cpus, own, policy)


def _bind_in_places(node: Node, count: int, cpus: Sequence[Cpu], policy: CpuPolicy) -> list[list[int]]:
    """Bind each rank inside the object that it is mapped to, or to the one around it; then put them in rank order."""
    found = objects_of(node.name, cpus, policy.map_by)
    targets = objects_of(node.name, cpus, policy.bind_to)
    target_of = {cpu.number: place for place, target in enumerate(targets) for cpu in target}
    inside = [list(dict.fromkeys(target_of[cpu.number] for cpu in one if cpu.number in target_of)) for one in found]
    places = assign_objects(len(found), count, policy.per_object)
    each = policy.cpus_per_rank
    used = [0] * len(targets)
    bound = []
    for place in places:
        chosen = sorted(inside[place], key=used.__getitem__)[:each]
        if len(chosen) < each or (not policy.overload and any(used[one] >= _limit(targets[one], policy) for one in chosen)):
            raise _overload(node, len(targets), policy.bind_to, count, each, _where(policy, found))
        for one in chosen:
            used[one] += 1
        bound.append(_numbers(targets[one] for one in chosen))
    if policy.rank_by == "fill":
        return [bound[place] for place in sorted(range(count), key=places.__getitem__)]
    if policy.rank_by is not None and (policy.rank_by != policy.map_by or policy.per_object):
        turns = objects_of(node.name, cpus, policy.rank_by)
        return [bound[place] for place in round_robin(overlapping([found[one] for one in places], one) for one in turns)]
    return bound


def _bind_in_blocks(
    node: Node, ranks: Sequence[Placement], cpus: Sequence[Cpu], own: Mapping[int, Gpu], policy: CpuPolicy
) -> list[list[int]]:
    """Deal consecutive objects to ranks that are mapped to the node as a whole."""
    sets = objects_of(node.name, cpus, policy.bind_to) if cpus else []
    each, count = policy.cpus_per_rank, len(ranks)
    exclusive = policy.bind_to in ("core", "hwthread") and not policy.overload
    if (exclusive and count * each > len(sets)) or each > len(sets):
        raise _overload(node, len(sets), policy.bind_to, count, each)
    shares = [sets[first : first + each] for first in range(0, len(sets) - each + 1, each)]
    numa = {one[0].numa: one for one in sets} if policy.bind_to == "numa" else {}
    bound = []
    for place, placement in enumerate(ranks):
        gpu = own.get(placement.rank)
        near = numa.get(gpu.numa) if gpu is not None else None
        bound.append(_numbers([near] if near else shares[place if count <= len(shares) else place * len(shares) // count]))
    return bound


def _as_listed(node: Node, ranks: Sequence[Placement], cpus: Sequence[Cpu], policy: CpuPolicy) -> list[list[int]]:
    """Give the ranks the CPU numbers that `lists` has for each, in turn."""
    usable = sorted(cpu.number for cpu in cpus)
    lists = policy.lists or [(number,) for number in usable]
    if missing := sorted({number for one in lists[: len(ranks)] for number in one} - set(usable)):
        raise LaunchError(
            "cpu-unknown",
            f"--bind-to user: no CPU {fold_numbers(missing)} may be used on {node.name}",
            context=[_cpus_of(node, cpus)],
            hint="name some of these",
        )
    return [list(lists[place % len(lists)]) for place in range(len(ranks))]


# Cores by their logical numbers


def _choose(node: Node, rank: int, cpus: Sequence[Cpu], policy: CpuPolicy) -> list[Object]:
    """Return what a rankfile says for a rank."""
    chosen: list[Object] = []
    for cores in policy.chosen[rank]:
        inside = cpus
        who = f"rank {rank}"
        if cores.socket is not None:
            sockets = objects_of(node.name, cpus, "socket")
            if cores.socket >= len(sockets):
                raise _no_such(node, who, "socket", [cores.socket], len(sockets))
            inside = sockets[cores.socket]
            who += f" in socket {cores.socket}"
        chosen += _logical(node, who, inside, cores.numbers, policy) if cores.numbers else [tuple(inside)]
    return chosen


def _logical(node: Node, who: str, cpus: Sequence[Cpu], numbers: Sequence[int], policy: CpuPolicy) -> list[Object]:
    found = objects(cpus, _unit(policy))
    if missing := [number for number in numbers if number >= len(found)]:
        raise _no_such(node, who, _unit(policy), missing, len(found))
    return [found[number] for number in numbers]


def _no_such(node: Node, who: str, kind: str, missing: Sequence[int], count: int) -> LaunchError:
    return LaunchError(
        "cpu-unknown",
        f"{who} on {node.name}: there is no {kind} {fold_numbers(missing)}",
        context=[f"{kind}s that may be used there: {f'0-{count - 1}' if count > 1 else '0' if count else 'none'}"],
        hint=f"{kind}s are counted from 0 in the order of the sockets, those that may not be used left out",
    )


# Small things


def _unit(policy: CpuPolicy) -> str:
    return "hwthread" if policy.hwthreads else "core"


def _limit(target: Object, policy: CpuPolicy) -> float:
    """Return how many ranks may be bound to an object."""
    if policy.bind_to not in ("core", "hwthread"):
        return float("inf")
    return len(target) if policy.hwthreads or policy.map_by == "hwthread" else 1


def _where(policy: CpuPolicy, found: Sequence[Object]) -> str:
    return f" dealt to {plural(len(found), policy.map_by)}" if policy.map_by != policy.bind_to else ""


def _overload(node: Node, have: int, kind: str, ranks: int, each: int, where: str = "") -> LaunchError:
    return LaunchError(
        "binding-overload",
        f"{node.name} has {plural(have, kind)} for {plural(ranks, 'rank')} with {each} each, which need {ranks * each}{where}",
        hint="start fewer ranks there, or let ranks share: --bind-to socket, --bind-to none, "
        f"--bind-to {kind}:overload-allowed",
    )


def _numbers(members: Iterable[Object]) -> list[int]:
    return [cpu.number for one in members for cpu in one]


def _cpus_of(node: Node, cpus: Iterable[Cpu]) -> str:
    return f"CPUs of {node.name}: {fold_numbers(cpu.number for cpu in cpus) or 'none'}"
