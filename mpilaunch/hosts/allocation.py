"""The allocation: the nodes and slots that this job may use.

Pure. A node's identity is its place in the allocation (`index`), never its name: two nodes may bear one name.

How mentions of a host become a node: a host that is named several times is one node, at the place of its first mention, and
its slots add up (`slots=2` and then a bare repeat are 3). Only the name `local` is a node of its own each time, for trying
things out. With a hostfile, `--host` chooses among its hosts, keeps its order, and may lower the slots of a host. Hosts that
are named by place (`+n0`, `+e`) choose in the same way among the nodes that there are without them: those of the hostfile,
of the scheduler, or this machine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.hosts.hostfile import HostEntry
from mpilaunch.hosts.nodeset import fold


class Slot(NamedTuple):
    """The right to run one rank on a node.

    Attributes:
        gpus: GPU indices or UUIDs of this slot, in order; None when nothing was said; empty for no GPU.
        cpus: CPU numbers of this slot; None when nothing was said.
        rank: the rank that must take this slot, when a slot map says so.
    """

    gpus: tuple[str, ...] | None = None
    cpus: tuple[int, ...] | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Node:
    """One machine (or pod) that may run ranks.

    Attributes:
        index: place in the allocation, from 0: the node's identity.
        name: as the user wrote it.
        slots: in slot order.
        agent: name of the agent or command template that reaches it ("local", "ssh", "tsh ssh {host} {command}").
        max_slots: hard limit on ranks, None for none.
        user: login name for the agent.
        port: port for the agent.
        origin: where the user named it: "hosts.txt:3", "--host", "SLURM_JOB_NODELIST".
        namespace, container: of a pod, for the agent.
    """

    index: int
    name: str
    slots: tuple[Slot, ...]
    agent: str
    max_slots: int | None = None
    user: str | None = None
    port: int | None = None
    origin: str = ""
    namespace: str | None = None
    container: str | None = None


class Allocation(NamedTuple):
    """The nodes in order, and where they came from ("hosts.txt", "--host", "Slurm job 42", "this machine").

    `agent_source` is the variable that says how nodes are reached about whose agent the user says nothing.
    `elastic_slots` is True when nobody said how many slots there are (this machine, no hosts given): then any number of
    ranks fits.
    """

    nodes: tuple[Node, ...]
    source: str
    elastic_slots: bool = False
    agent_source: str = ""


MAX_SLOTS = 1 << 20
"""Most slots of an allocation, and ranks of a job: a typing error must not fill the memory."""

LOCAL = "local"
"""The host name, and the agent, of this machine."""

if TYPE_CHECKING:
    from typing import TypeVar

    _Value = TypeVar("_Value", str, int)


def from_sources(
    hostfile: Sequence[HostEntry],
    host_list: Sequence[HostEntry],
    found: tuple[Sequence[HostEntry], str] | None,
    *,
    hostfile_source: str = "",
    agent: str | None,
    remote_agent: str = "ssh",
    per_node: int | None,
    local_names: Collection[str],
    local_slots: int,
) -> Allocation:
    """Return the allocation of a job: from the hostfile, filtered by `--host`; else from `--host`; else as found; else here.

    Args:
        hostfile: entries of `--hostfile`, empty when not given; `hostfile_source` names the files for messages.
        host_list: entries of `--host`, empty when not given.
        found: entries and source that the caller found because neither was given: a scheduler's, or a slot map's.
        agent: `--agent`, for every node whose entry names none.
        remote_agent: `--remote-agent`, for those of them that are not this machine, where there is no `agent`.
        per_node: `-N`: the slots of a host about whose slots nothing was said.
        local_names: names of the machine that the head runs on; they need no agent but `local`.
        local_slots: slots of this machine when no hosts are given at all.
    """

    def of_entries(entries: Sequence[HostEntry], source: str) -> Allocation:
        return allocate(
            entries, source=source, agent=agent, remote_agent=remote_agent, per_node=per_node, local_names=local_names
        )

    around = of_entries(*found) if found else this_machine(local_slots, agent or LOCAL)
    for entries, source in ((hostfile, hostfile_source), (host_list, "--host")):
        if not entries:
            continue
        if has_relative_names(entries):
            around = filter_by_host_list(around, resolve_relative_names(entries, around), source)
        elif source == "--host" and hostfile:
            around = filter_by_host_list(around, entries)
        else:
            around = of_entries(entries, source)
    return around


def has_relative_names(entries: Sequence[HostEntry]) -> bool:
    """Say whether some entry names a node by its place (`+n0`, `+e`) and not by its name."""
    return any(entry.name.startswith("+") for entry in entries)


def resolve_relative_names(entries: Sequence[HostEntry], allocation: Allocation) -> list[HostEntry]:
    """Return the entries with names in place of `+n0` and `+e`; raises UsageError for a place that is not there."""
    names = [node.name for node in allocation.nodes]
    free = dict.fromkeys(names)
    for entry in entries:
        name = entry.name
        if name.startswith("+n") and int(name[2:]) < len(names):
            name = names[int(name[2:])]
        free.pop(name, None)
    named = []
    for entry in entries:
        kind, number = entry.name[:2], entry.name[2:].lstrip(":")
        if kind == "+e":
            chosen = list(free)[: int(number) if number else None]
            if len(chosen) < int(number or 1):
                raise _no_place(entry, f"{len(free)} of its {len(names)} are named by no other", allocation)
            for name in chosen:
                del free[name]
        elif kind == "+n":
            if int(number) >= len(names):
                raise _no_place(entry, f"the last is +n{len(names) - 1}", allocation)
            chosen = [names[int(number)]]
        else:
            chosen = [entry.name]
        named += [entry._replace(name=name) for name in chosen]
    return named


def _no_place(entry: HostEntry, told: str, allocation: Allocation) -> UsageError:
    return UsageError(
        "host-relative",
        f"{entry.origin}: '{entry.name}' is not one of the nodes of {allocation.source}: {told}",
        context=(f"{allocation.source} has {fold(node.name for node in allocation.nodes)}",),
        hint="+n0 is the first node; +e is all nodes that are not named, +e:2 two of them",
    )


def order_nodes(allocation: Allocation, *, descending: bool) -> Allocation:
    """Return the allocation with its nodes in the order of their slots, those with as many in the order they had."""
    nodes = sorted(allocation.nodes, key=lambda node: len(node.slots), reverse=descending)
    return allocation._replace(nodes=tuple(replace(node, index=index) for index, node in enumerate(nodes)))


def node_indices(entries: Sequence[HostEntry], allocation: Allocation) -> tuple[int, ...]:
    """Return the index of the node that each entry names; raises UsageError for a host that the allocation lacks.

    Where several nodes bear one name, the first mention is the first of them, and so on round.
    """
    by_name: dict[str, list[int]] = defaultdict(list)
    for node in allocation.nodes:
        by_name[node.name].append(node.index)
    mentions: Counter[str] = Counter()
    indices = []
    for entry in resolve_relative_names(entries, allocation):
        if entry.name not in by_name:
            raise UsageError(
                "host-unknown",
                f"{entry.origin}: {entry.name} is not in {allocation.source}",
                context=(f"{allocation.source} has {fold(node.name for node in allocation.nodes)}",),
                hint="name hosts that the job has",
            )
        own = by_name[entry.name]
        indices.append(own[mentions[entry.name] % len(own)])
        mentions[entry.name] += 1
    return tuple(indices)


def allocate(
    entries: Sequence[HostEntry],
    *,
    source: str,
    agent: str | None,
    remote_agent: str = "ssh",
    per_node: int | None,
    local_names: Collection[str],
) -> Allocation:
    """Return the nodes that the entries name; raises UsageError when mentions of one host disagree."""
    nodes = []
    total = 0
    for index, mentions in enumerate(_by_host(entries)):
        user = _agreed(mentions, "user", [entry.user for entry in mentions])
        port = _agreed(mentions, "port", [entry.port for entry in mentions])
        named_agent = _agreed(mentions, "agent", [entry.agent for entry in mentions])
        # Somebody who logs in to this machine as another user or at another port does not want a plain child process.
        here = mentions[0].name == LOCAL or (mentions[0].name in local_names and user is None and port is None)
        bare_slots = per_node if per_node is not None and len(mentions) == 1 else 1
        counts = [_slot_count(entry, bare_slots) for entry in mentions]
        total += sum(counts)
        if total > MAX_SLOTS:
            raise UsageError("host-slots", f"{source} asks for more than the {MAX_SLOTS:,} slots allowed")
        slots = tuple(
            slot
            for entry, count in zip(mentions, counts, strict=True)
            for slot in divide(count, entry.gpus, entry.cpus, f"{entry.origin}: {entry.name}")
        )
        node = Node(
            index=index,
            name=mentions[0].name,
            slots=slots,
            agent=named_agent or agent or (LOCAL if here else remote_agent),
            max_slots=min((entry.max_slots for entry in mentions if entry.max_slots is not None), default=None),
            user=user,
            port=port,
            namespace=_agreed(mentions, "namespace", [entry.namespace for entry in mentions]),
            container=_agreed(mentions, "container", [entry.container for entry in mentions]),
            origin=mentions[0].origin,
        )
        if node.max_slots is not None and len(slots) > node.max_slots:
            raise UsageError(
                "host-slots",
                f"{node.name} has {len(slots)} slots, more than its max_slots={node.max_slots}",
                context=_told(mentions),
                hint="give the host fewer slots or a higher max_slots",
            )
        nodes.append(node)
    return Allocation(tuple(nodes), source)


def filter_by_host_list(allocation: Allocation, host_list: Sequence[HostEntry], said: str = "--host") -> Allocation:
    """Return the nodes that `--host` names, in the allocation's order, with no more slots than it says; `said` is its name.

    A host named once and without slots keeps all that it has. Raises UsageError for a host that the allocation lacks.
    """
    known = {node.name for node in allocation.nodes}
    missing = [entry.name for entry in host_list if entry.name not in known]
    if missing:
        raise UsageError(
            "host-unknown",
            f"{fold(missing)} of {said} is not in {allocation.source}",
            context=(f"{allocation.source} has {fold(node.name for node in allocation.nodes)}",),
            hint="name hosts of the hostfile, or leave --hostfile out to use --host alone",
        )
    wanted: dict[str, list[HostEntry]] = defaultdict(list)
    for entry in host_list:
        wanted[entry.name].append(entry)
    nodes: list[Node] = []
    for node in allocation.nodes:
        if mentions := wanted.get(node.name):
            chosen = replace(node, index=len(nodes), slots=_lowered(node, mentions, said, allocation.elastic_slots))
            user = _agreed(mentions, "user", [entry.user for entry in mentions])
            nodes.append(replace(chosen, user=user or node.user))
    return allocation._replace(nodes=tuple(nodes))


def this_machine(slots: int, agent: str = LOCAL) -> Allocation:
    """Return the allocation of a job for which nobody named hosts: the node that the head runs on."""
    node = Node(index=0, name="localhost", slots=(Slot(),) * slots, agent=agent, origin="this machine")
    return Allocation((node,), "this machine", elastic_slots=True)


def divide(count: int, gpus: tuple[str, ...] | None, cpus: tuple[int, ...] | None, where: str) -> tuple[Slot, ...]:
    """Return `count` slots that share the GPUs equally and the CPUs as equally as can be, in contiguous pieces.

    Args:
        where: the host and the place where it was said, for messages.
    """
    if not count:
        return ()
    if gpus and len(gpus) % count:
        raise UsageError(
            "host-gpus",
            f"{where}: {len(gpus)} GPU{'s' * (len(gpus) > 1)} cannot be divided equally among {count} slots",
            hint=f"name as many GPUs as slots or a multiple, or write slots={len(gpus)} for one GPU each",
        )
    if cpus is not None and len(cpus) < count:
        raise UsageError(
            "host-cpus",
            f"{where}: {len(cpus)} CPU{'s' * (len(cpus) > 1)} for {count} slots",
            hint="name at least one CPU for each slot",
        )
    if gpus is None and cpus is None:
        return (Slot(),) * count
    per_slot = len(gpus or ()) // count
    each, more = divmod(len(cpus or ()), count)
    starts = [each * place + min(place, more) for place in range(count + 1)]
    return tuple(
        Slot(
            gpus=None if gpus is None else gpus[place * per_slot : (place + 1) * per_slot],
            cpus=None if cpus is None else cpus[starts[place] : starts[place + 1]],
        )
        for place in range(count)
    )


def _by_host(entries: Sequence[HostEntry]) -> list[list[HostEntry]]:
    """Return the mentions of each host together, hosts in the order of their first mention."""
    hosts: dict[object, list[HostEntry]] = {}
    for place, entry in enumerate(entries):
        hosts.setdefault(place if entry.name == LOCAL else entry.name, []).append(entry)
    return list(hosts.values())


def _slot_count(entry: HostEntry, bare_slots: int) -> int:
    if entry.slots is not None:
        return entry.slots
    return len(entry.gpus) if entry.gpus else bare_slots


def _lowered(node: Node, mentions: Sequence[HostEntry], said: str, elastic: bool) -> tuple[Slot, ...]:
    """Return the slots of a node that `--host` leaves it; those of an elastic allocation are any number."""
    if len(mentions) == 1 and mentions[0].slots is None:
        return node.slots
    count = sum(1 if entry.slots is None else entry.slots for entry in mentions)
    if elastic:
        return (Slot(),) * count
    if count > len(node.slots):
        raise UsageError(
            "host-slots",
            f"{said} asks for {count} slots on {node.name}, which has {len(node.slots)} ({node.origin})",
            hint=f"{said} may lower the slots that a host has, not raise them; --oversubscribe allows more ranks than slots",
        )
    return node.slots[:count]


def _agreed(mentions: Sequence[HostEntry], field: str, values: Sequence[_Value | None]) -> _Value | None:
    """Return the one value that the mentions of a host give, None when none does; raises UsageError when they differ."""
    told = [(value, entry) for value, entry in zip(values, mentions, strict=True) if value is not None]
    for value, entry in told[1:]:
        if value != told[0][0]:
            raise UsageError(
                "host-conflict",
                f"{entry.name} is named with {field} '{told[0][0]}' and with '{value}'",
                context=_told((told[0][1], entry)),
                hint=f"give the host one {field}",
            )
    return told[0][0] if told else None


def _told(mentions: Sequence[HostEntry]) -> tuple[str, ...]:
    return tuple(f"{entry.origin}: {entry.name}" for entry in mentions)
