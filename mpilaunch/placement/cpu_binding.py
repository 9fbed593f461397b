"""CPU binding: the hardware threads of its node that each rank may use.

Pure: the ranks of one node, its CPUs and a policy give a set of CPU numbers per rank, or an error. CPUs of a slot always
bind, and the policy chooses among them; ranks whose slots name no CPUs share the others. `daemon.ranks.spawn` applies the
result.

A rank is mapped to an object of the node if `map_by` names one, else to the whole node. Inside it, a rank gets the `bind_to`
objects with the fewest ranks so far, on a tie the first. If `bind_to` names something larger than the mapped object, the rank
gets the one that contains it. Ranks mapped to the whole node get consecutive objects, or share them in blocks: neighbours
stay together, near GPUs listed by bus. A core or hardware thread has one rank unless overload is allowed; larger objects may
be shared. What Open MPI makes depend on the size of the job, `settled` decides when that and the node are known.
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

_FEW = 2
"""Open MPI's largest number of ranks that get a core each by default."""


class Cores(NamedTuple):
    """Cores of a rankfile by logical number, of a socket or of the node; without numbers the whole socket."""

    socket: int | None
    numbers: tuple[int, ...] = ()


class CpuPolicy(NamedTuple):
    """How the ranks of a job are bound to CPUs.

    Attributes:
        bind_to: "none", an object (`topology.OBJECTS`), "cpu-list" (all of `cpu_list`), "user" (see `lists`), "default".
        cpus_per_rank: how many of these objects each rank gets: mpirun's PE=n with cores or hardware threads, Hydra's numa:2.
        map_by: the object that each rank is mapped to; "slot" for the whole node; "default".
        per_object: this many ranks on each `map_by` object before the next; None for one rank on each in turn.
        rank_by: the objects that number the ranks of a node in turn, "fill" for one object after the other; None for the
            order of mapping.
        hwthreads: CPUs are hardware threads, not cores.
        in_turn: ranks mapped to the whole node get its larger objects in turn, not in blocks.
        overload: ranks may share a core or hardware thread.
        if_supported: on a node without such objects the ranks stay unbound.
        cpu_list: logical numbers of the only cores to use; empty for all.
        ordered: "cpu-list" gives each rank one core of the list, not all.
        lists: with "user", the CPU numbers of each rank of a node, repeated as needed; empty for `cpus_per_rank` each in order.
        chosen: the cores of each rank, from a rankfile; empty without one.
    """

    bind_to: str = "none"
    cpus_per_rank: int = 1
    map_by: str = "slot"
    per_object: int | None = None
    rank_by: str | None = None
    hwthreads: bool = False
    in_turn: bool = False
    overload: bool = False
    if_supported: bool = False
    cpu_list: tuple[int, ...] = ()
    ordered: bool = False
    lists: tuple[tuple[int, ...], ...] = ()
    chosen: tuple[tuple[Cores, ...], ...] = ()

    def settled(self, ranks: int, cpus: Iterable[Cpu]) -> CpuPolicy:
        """Return the policy without "default", for a node with these CPUs in a job of this many ranks.

        The rule is that of Open MPI 4.1 (orte_rmaps_base_map_job): up to two ranks go to cores, more to NUMA nodes. A rank that
        is bound to a NUMA node is mapped to the whole node even so, since that of its GPU comes first.
        """
        core = "hwthread" if self.hwthreads else "core"
        bind_to, map_by = self.bind_to, self.map_by
        if bind_to == "default":
            bind_to = core if ranks <= _FEW else "numa"
        if map_by == "default":
            map_by = core if ranks <= _FEW and self.cpus_per_rank == 1 else "numa"
            if bind_to == "numa" or not objects(cpus, map_by):
                map_by = "slot"
        return self._replace(bind_to=bind_to, map_by=map_by)


def bind_cpus(
    node: Node, placements: Sequence[Placement], cpus: Sequence[Cpu], gpu_of: Mapping[int, Gpu], policy: CpuPolicy
) -> dict[int, tuple[int, ...] | None]:
    """Return the CPU numbers of each rank of a node, None for an unbound rank; raises LaunchError.

    `gpu_of` has the GPU that a rank is likely to compute on; binding to NUMA nodes chooses that of the GPU.
    """
    named = {number for placement in placements for number in node.slots[placement.slot].cpus or ()}
    usable = frozenset(cpu.number for cpu in cpus)
    rest = usable - named
    sharing: dict[frozenset[int], list[Placement]] = {}
    for placement in placements:
        slot_cpus = node.slots[placement.slot].cpus
        if missing := sorted(set(slot_cpus or ()) - usable):
            message = f"rank {placement.rank} may not use CPU {fold_numbers(missing)} on {node.name}"
            raise _unknown(node, message, cpus, f" for slot {placement.slot} ({node.origin or node.name})")
        sharing.setdefault(rest if slot_cpus is None else frozenset(slot_cpus), []).append(placement)
    bound: dict[int, tuple[int, ...] | None] = {}
    for numbers, ranks in sharing.items():
        if policy.bind_to == "none":
            bound |= {p.rank: None if node.slots[p.slot].cpus is None else tuple(sorted(numbers)) for p in ranks}
            continue
        try:
            sets = _bind(node, ranks, [cpu for cpu in cpus if cpu.number in numbers], gpu_of, policy)
        except LaunchError as error:
            if error.reference != "object-unknown" or not policy.if_supported:
                raise
            bound |= {placement.rank: None for placement in ranks}
        else:
            bound |= {p.rank: tuple(sorted(set(members))) for p, members in zip(ranks, sets, strict=True)}
    return bound


def picture(bound: Iterable[int], cpus: Iterable[Cpu]) -> str:
    """Return a drawing of a binding in mpirun's style: [BB/../..] for a socket of three cores, bound to the first."""
    numbers = set(bound)
    sockets = []
    for socket in objects(cpus, "socket"):
        cores = ("".join("B" if cpu.number in numbers else "." for cpu in core) for core in objects(socket, "core"))
        sockets.append(f"[{'/'.join(cores)}]")
    return "".join(sockets)


# Ranks that share a set of CPUs


def _bind(
    node: Node, ranks: Sequence[Placement], cpus: Sequence[Cpu], gpu_of: Mapping[int, Gpu], policy: CpuPolicy
) -> list[list[int]]:
    """Return the CPU numbers of each of these ranks, which share these CPUs."""
    if policy.chosen:
        return [_numbers(_rankfile_cores(node, place.rank, cpus, policy)) for place in ranks]
    if policy.bind_to == "user":
        return _bind_to_lists(node, len(ranks), cpus, policy)
    if policy.cpu_list:
        listed = _logical(node, "--cpu-set", cpus, policy.cpu_list, policy)
        if policy.bind_to == "cpu-list" and not policy.ordered:
            return [_numbers(listed) for _ in ranks]
        if policy.bind_to == "cpu-list":
            if len(ranks) > len(listed) and not policy.overload:
                raise _overload(node, len(listed), _unit(policy), len(ranks), 1)
            return [_numbers([listed[index % len(listed)]]) for index in range(len(ranks))]
        cpus = [cpu for members in listed for cpu in members]
    if policy.map_by in OBJECTS:
        return _bind_in_objects(node, len(ranks), cpus, policy)
    return _bind_in_blocks(node, ranks, cpus, gpu_of, policy)


def _bind_in_objects(node: Node, count: int, cpus: Sequence[Cpu], policy: CpuPolicy) -> list[list[int]]:
    """Bind each rank inside the object that it is mapped to, or to the object around that; return them in rank order."""
    map_objects = objects_of(node.name, cpus, policy.map_by)
    targets = objects_of(node.name, cpus, policy.bind_to)
    target_of = {cpu.number: index for index, target in enumerate(targets) for cpu in target}
    targets_in = [
        list(dict.fromkeys(target_of[cpu.number] for cpu in members if cpu.number in target_of)) for members in map_objects
    ]
    assigned = assign_objects(len(map_objects), count, policy.per_object)
    each = policy.cpus_per_rank
    used = [0] * len(targets)
    bound = []
    for index in assigned:
        chosen = sorted(targets_in[index], key=used.__getitem__)[:each]
        full = not policy.overload and any(used[target] >= _limit(targets[target], policy) for target in chosen)
        if full or len(chosen) < each:
            where = f" dealt to {plural(len(map_objects), policy.map_by)}" if policy.map_by != policy.bind_to else ""
            raise _overload(node, len(targets), policy.bind_to, count, each, where)
        for target in chosen:
            used[target] += 1
        bound.append(_numbers(targets[target] for target in chosen))
    if policy.rank_by == "fill":
        return [bound[position] for position in sorted(range(count), key=assigned.__getitem__)]
    if policy.rank_by is not None and (policy.rank_by != policy.map_by or policy.per_object):
        rank_objects = objects_of(node.name, cpus, policy.rank_by)
        mapped_to = [map_objects[index] for index in assigned]
        return [bound[position] for position in round_robin(overlapping(mapped_to, members) for members in rank_objects)]
    return bound


def _bind_in_blocks(
    node: Node, ranks: Sequence[Placement], cpus: Sequence[Cpu], gpu_of: Mapping[int, Gpu], policy: CpuPolicy
) -> list[list[int]]:
    """Bind ranks that are mapped to the whole node to consecutive objects."""
    sets = objects_of(node.name, cpus, policy.bind_to) if cpus else []
    each, count = policy.cpus_per_rank, len(ranks)
    exclusive = policy.bind_to in ("core", "hwthread") and not policy.overload
    if (exclusive and count * each > len(sets)) or each > len(sets):
        raise _overload(node, len(sets), policy.bind_to, count, each)
    shares = [sets[first : first + each] for first in range(0, len(sets) - each + 1, each)]
    numa = {members[0].numa: members for members in sets} if policy.bind_to == "numa" else {}
    blocks = count > len(shares) and not policy.in_turn
    bound = []
    for index, placement in enumerate(ranks):
        gpu = gpu_of.get(placement.rank)
        near = numa.get(gpu.numa) if gpu is not None else None
        share = index * len(shares) // count if blocks else index % len(shares)
        bound.append(_numbers([near] if near else shares[share]))
    return bound


def _bind_to_lists(node: Node, count: int, cpus: Sequence[Cpu], policy: CpuPolicy) -> list[list[int]]:
    """Bind each rank to the CPU numbers of its list."""
    usable = sorted(cpu.number for cpu in cpus)
    each = policy.cpus_per_rank
    lists = policy.lists or [tuple(usable[first : first + each]) for first in range(0, len(usable) - each + 1, each)]
    if not lists or (each > 1 and count > len(lists)):
        raise _overload(node, len(usable), "hwthread", count, each)
    if missing := sorted({number for numbers in lists[:count] for number in numbers} - set(usable)):
        raise _unknown(node, f"--bind-to user: no CPU {fold_numbers(missing)} may be used on {node.name}", cpus, "")
    return [list(lists[index % len(lists)]) for index in range(count)]


# Cores by their logical numbers


def _rankfile_cores(node: Node, rank: int, cpus: Sequence[Cpu], policy: CpuPolicy) -> list[Object]:
    """Return the cores that a rankfile gives a rank; raises LaunchError."""
    chosen: list[Object] = []
    for cores in policy.chosen[rank]:
        inside = cpus
        subject = f"rank {rank}"
        if cores.socket is not None:
            sockets = objects_of(node.name, cpus, "socket")
            if cores.socket >= len(sockets):
                raise _no_such(node, subject, "socket", [cores.socket], len(sockets))
            inside = sockets[cores.socket]
            subject += f" in socket {cores.socket}"
        chosen += _logical(node, subject, inside, cores.numbers, policy) if cores.numbers else [tuple(inside)]
    return chosen


def _logical(node: Node, subject: str, cpus: Sequence[Cpu], numbers: Sequence[int], policy: CpuPolicy) -> list[Object]:
    """Return the cores or hardware threads with these logical numbers; raises LaunchError."""
    units = objects(cpus, _unit(policy))
    if missing := [number for number in numbers if number >= len(units)]:
        raise _no_such(node, subject, _unit(policy), missing, len(units))
    return [units[number] for number in numbers]


def _no_such(node: Node, subject: str, kind: str, missing: Sequence[int], count: int) -> LaunchError:
    message = f"{subject} on {node.name}: there is no {kind} {fold_numbers(missing)}"
    context = [f"{kind}s that may be used there: {fold_numbers(range(count)) or 'none'}"]
    hint = f"{kind}s are counted from 0 in the order of the sockets, those that may not be used left out"
    return LaunchError("cpu-unknown", message, context=context, hint=hint)


def _unit(policy: CpuPolicy) -> str:
    return "hwthread" if policy.hwthreads else "core"


def _limit(target: Object, policy: CpuPolicy) -> float:
    """Return the most ranks that may be bound to an object."""
    if policy.bind_to not in ("core", "hwthread"):
        return float("inf")
    return len(target) if policy.hwthreads or policy.map_by == "hwthread" else 1


def _overload(node: Node, have: int, kind: str, ranks: int, each: int, where: str = "") -> LaunchError:
    need = f"{plural(ranks, 'rank')} with {each} each, which need {ranks * each}{where}"
    remedies = f"--bind-to socket, --bind-to none, --bind-to {kind}:overload-allowed"
    hint = f"start fewer ranks there, or let ranks share: {remedies}"
    return LaunchError("binding-overload", f"{node.name} has {plural(have, kind)} for {need}", hint=hint)


def _numbers(chosen: Iterable[Object]) -> list[int]:
    return [cpu.number for members in chosen for cpu in members]


def _unknown(node: Node, message: str, cpus: Iterable[Cpu], where: str) -> LaunchError:
    context = [f"CPUs of {node.name}: {fold_numbers(cpu.number for cpu in cpus) or 'none'}"]
    return LaunchError("cpu-unknown", message, context=context, hint=f"name some of these{where}")
