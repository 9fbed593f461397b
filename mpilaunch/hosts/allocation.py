"""The allocation: the nodes and slots that this job may use.

Pure. A node is identified by its index in the allocation, never by its name: two nodes may have the same name.

A host that is mentioned several times is one node, at the position of its first mention, and its slots add up (`slots=2` and a
repeat without slots are 3); `local` is a new node at each mention. With a hostfile, `--host` selects among its hosts, in the
hostfile's order, and may lower their slots. Relative names (`+n0`, `+e`) select among the nodes of the hostfile, the scheduler
or this machine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from mpilaunch.agent import LOCAL
from mpilaunch.errors import UsageError
from mpilaunch.hosts.hostfile import HostEntry
from mpilaunch.hosts.nodeset import fold
from mpilaunch.text import plural


class Slot(NamedTuple):
    """The right to run one rank on a node.

    Attributes:
        gpus: indices or UUIDs, in order; None if not specified; empty for no GPU.
        cpus: CPU numbers; None if not specified.
        rank: the rank that must take this slot, fixed by a slot map.
    """

    gpus: tuple[str, ...] | None = None
    cpus: tuple[int, ...] | None = None
    rank: int | None = None


class Node(NamedTuple):
    """One machine (or pod) that may run ranks.

    Attributes:
        index: position in the allocation, from 0: the node's identity.
        name: as the user wrote it.
        agent: name or command template of its agent ("local", "ssh", "tsh ssh {host} {command}").
        max_slots: hard limit on ranks, None for none.
        by_cores: it has a slot for each of its cores, once it has told how many; until then one.
        user, port, namespace, container: for the agent; the last two are those of a pod.
        origin: source of its first mention: "hosts.txt:3", "--host", "SLURM_JOB_NODELIST".
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nothing calls
    name: str
    slots: tuple[Slot, ...]
    agent: str
    max_slots: int | None = None
    user: str | None = None
    port: int | None = None
    origin: str = ""
    namespace: str | None = None
    container: str | None = None
    by_cores: bool = False

    @property
    def here(self) -> bool:
        """Whether its daemon runs on this machine, from the installed files, over a pipe that no network can cut."""
        return self.agent == LOCAL


class HostDefaults(NamedTuple):
    """The settings of hosts whose entries give none.

    Attributes:
        agent, remote_agent: of every node, and of other machines where `agent` is None.
        scheduled: the agents of the hosts of the surrounding batch job, in place of `remote_agent`, unless an entry says how
            to log in.
        per_node: the slots of a host.
        by_cores: a host of the hostfile has a slot for each of its cores; otherwise one.
        local_names: names of the head's machine.
    """

    agent: str | None = None
    remote_agent: str = "ssh"
    scheduled: Mapping[str, str] = MappingProxyType({})
    per_node: int | None = None
    by_cores: bool = False
    local_names: Collection[str] = ()


class Allocation(NamedTuple):
    """The nodes in order, and their source ("hosts.txt", "--host", "Slurm job 42", "this machine").

    Attributes:
        elastic_slots: the number of slots was not specified (no hosts given), so any number of ranks fits.
        agent_source: the variable that gave the agent of the nodes without one.
        unused_agent: that of the surrounding batch job, where nodes of it have another one.
        defaults: for hosts that are discovered later.
    """

    nodes: tuple[Node, ...]
    source: str
    elastic_slots: bool = False
    agent_source: str = ""
    unused_agent: str = ""
    defaults: HostDefaults = HostDefaults()

    @property
    def slot_count(self) -> int:
        """The number of slots of all nodes."""
        return sum(len(node.slots) for node in self.nodes)


CORES = "cores"
"""What gives the nodes of `by_cores` their slots, as -N gpu gives all nodes theirs."""
MAX_SLOTS = 1 << 20
"""Limit on the slots of an allocation and the ranks of a job, so that a typing error cannot exhaust the memory."""



def from_sources(
    hostfile: Sequence[HostEntry],
    host_list: Sequence[HostEntry],
    surrounding: tuple[Sequence[HostEntry], str] | None,
    defaults: HostDefaults,
    *,
    hostfile_source: str = "",
    local_slots: int,
) -> Allocation:
    """Return the allocation from the hostfile (filtered by `--host`), `--host`, `surrounding` or this machine, in this order.

    Args:
        hostfile, host_list: entries of `--hostfile` and `--host`; `hostfile_source` names the files for messages.
        surrounding: entries and source of a scheduler's job or a slot map.
        local_slots: slots of the head's machine when no hosts are given.
    """
    allocation = this_machine(local_slots, defaults.agent or LOCAL)
    if surrounding:
        allocation = allocate(*surrounding, defaults)
    for entries, source in ((hostfile, hostfile_source), (host_list, "--host")):
        if not entries:
            continue
        if has_relative_names(entries):
            allocation = filter_by_host_list(allocation, resolve_relative_names(entries, allocation), source)
        elif source == "--host" and hostfile:
            allocation = filter_by_host_list(allocation, entries)
        else:
            allocation = allocate(entries, source, defaults if source != "--host" else defaults._replace(by_cores=False))
    return allocation


def has_relative_names(entries: Sequence[HostEntry]) -> bool:
    """Return whether any entry has a relative name (`+n0`, `+e`)."""
    return any(entry.name.startswith("+") for entry in entries)


def resolve_relative_names(entries: Sequence[HostEntry], allocation: Allocation) -> list[HostEntry]:
    """Return the entries with host names instead of `+n0` and `+e`; raises UsageError if there is no such node."""
    names = [node.name for node in allocation.nodes]
    free = dict.fromkeys(names)
    for entry in entries:
        name = entry.name
        if name.startswith("+n") and int(name[2:]) < len(names):
            name = names[int(name[2:])]
        free.pop(name, None)
    resolved = []
    for entry in entries:
        kind, number = entry.name[:2], entry.name[2:].lstrip(":")
        if kind == "+e":
            chosen = list(free)[: int(number) if number else None]
            if len(chosen) < int(number or 1):
                raise _no_such_node(entry, f"{len(free)} of its {len(names)} are named by no other", allocation)
            for name in chosen:
                del free[name]
        elif kind == "+n":
            if int(number) >= len(names):
                raise _no_such_node(entry, f"the last is +n{len(names) - 1}", allocation)
            chosen = [names[int(number)]]
        else:
            chosen = [entry.name]
        resolved += [entry._replace(name=name) for name in chosen]
    return resolved


def _hosts_of(allocation: Allocation) -> list[str]:
    """Return the context of an error about a host that the allocation lacks."""
    return [f"{allocation.source} has {fold(node.name for node in allocation.nodes)}"]


def _no_such_node(entry: HostEntry, reason: str, allocation: Allocation) -> UsageError:
    message = f"{entry.origin}: '{entry.name}' is not one of the nodes of {allocation.source}: {reason}"
    hint = "+n0 is the first node; +e is all nodes that are not named, +e:2 two of them"
    return UsageError("host-relative", message, context=_hosts_of(allocation), hint=hint)


def order_nodes(allocation: Allocation, *, descending: bool) -> Allocation:
    """Return the allocation with its nodes sorted by their number of slots; the sort is stable."""
    nodes = sorted(allocation.nodes, key=lambda node: len(node.slots), reverse=descending)
    return allocation._replace(nodes=tuple(node._replace(index=index) for index, node in enumerate(nodes)))


def node_indices(entries: Sequence[HostEntry], allocation: Allocation) -> tuple[int, ...]:
    """Return the index of the node that each entry names; raises UsageError for a host that the allocation lacks.

    Repeated mentions of a name that several nodes have go through these nodes in turn.
    """
    by_name: dict[str, list[int]] = defaultdict(list)
    for node in allocation.nodes:
        by_name[node.name].append(node.index)
    mentions: Counter[str] = Counter()
    indices = []
    for entry in resolve_relative_names(entries, allocation):
        if entry.name not in by_name:
            message = f"{entry.origin}: {entry.name} is not in {allocation.source}"
            raise UsageError("host-unknown", message, context=_hosts_of(allocation), hint="name hosts that the job has")
        own = by_name[entry.name]
        indices.append(own[mentions[entry.name] % len(own)])
        mentions[entry.name] += 1
    return tuple(indices)


def allocate(entries: Sequence[HostEntry], source: str, defaults: HostDefaults) -> Allocation:
    """Return the nodes that the entries name; raises UsageError if mentions of one host contradict each other."""
    nodes: list[Node] = []
    total = 0
    for name, origin, mentions in _by_host(entries):
        agreed = {field: _agreed(mentions, field) for field in ("user", "port", "agent", "namespace", "container")}
        # Another user or port on this machine needs a login: a child process would not do.
        login = agreed["user"] is not None or agreed["port"] is not None
        here = name == LOCAL or (name in defaults.local_names and not login)
        remote = defaults.remote_agent if login else defaults.scheduled.get(name, defaults.remote_agent)
        agreed["agent"] = agreed["agent"] or defaults.agent or (LOCAL if here else remote)
        bare_slots = defaults.per_node if defaults.per_node is not None and len(mentions) == 1 else 1
        counts = [len(entry.gpus or ()) or bare_slots if entry.slots is None else entry.slots for entry in mentions]
        total += sum(counts)
        if total > MAX_SLOTS:
            raise UsageError("host-slots", f"{source} asks for more than the {MAX_SLOTS:,} slots allowed")
        slots = tuple(
            slot
            for entry, count in zip(mentions, counts, strict=True)
            for slot in divide(count, entry.gpus, entry.cpus, f"{entry.origin}: {entry.name}")
        )
        max_slots = min((entry.max_slots for entry in mentions if entry.max_slots is not None), default=None)
        if max_slots is not None and len(slots) > max_slots:
            raise UsageError(
                "host-slots",
                f"{name} has {plural(len(slots), 'slot')}, more than its max_slots={max_slots}",
                context=_origins(mentions),
                hint="give the host fewer slots or a higher max_slots",
            )
        first = mentions[0]
        by_cores = len(mentions) == 1 and (first.by_cores or (defaults.by_cores and defaults.per_node is None))
        by_cores = by_cores and (first.slots, first.gpus, first.cpus) == (None, None, None)
        nodes.append(Node(len(nodes), name, slots, max_slots=max_slots, origin=origin, by_cores=by_cores, **agreed))
    return Allocation(tuple(nodes), source, defaults=defaults)


def filter_by_host_list(allocation: Allocation, host_list: Sequence[HostEntry], source: str = "--host") -> Allocation:
    """Return the nodes of a host list in the allocation's order, with the slots that the list leaves them.

    A host named once without slots keeps its slots. Raises UsageError for a host that the allocation lacks.
    """
    known = {node.name for node in allocation.nodes}
    missing = [entry.name for entry in host_list if entry.name not in known]
    if missing:
        hint = "name hosts of the hostfile, or leave --hostfile out to use --host alone"
        message = f"{fold(missing)} of {source} is not in {allocation.source}"
        raise UsageError("host-unknown", message, context=_hosts_of(allocation), hint=hint)
    mentions_of: dict[str, list[HostEntry]] = defaultdict(list)
    for entry in host_list:
        mentions_of[entry.name].append(entry)
    nodes: list[Node] = []
    for node in allocation.nodes:
        if mentions := mentions_of.get(node.name):
            slots = _selected_slots(node, mentions, source, allocation.elastic_slots)
            user, by_cores = _agreed(mentions, "user") or node.user, node.by_cores and not _counts(mentions)
            nodes.append(node._replace(index=len(nodes), slots=slots, user=user, by_cores=by_cores))
    return allocation._replace(nodes=tuple(nodes))


def resize(allocation: Allocation, count: int) -> Allocation:
    """Return the allocation with this number of slots on each node that has any; raises UsageError for too many."""
    if count * len(allocation.nodes) > MAX_SLOTS:
        message = f"{plural(count, 'rank')} on each of the nodes, more than the {MAX_SLOTS:,} allowed in all"
        raise UsageError("host-slots", message, hint="ask for fewer ranks on each node")
    slots = [(node.slots + (Slot(),) * count)[:count] if node.slots else () for node in allocation.nodes]
    nodes = tuple(node._replace(slots=own) for node, own in zip(allocation.nodes, slots, strict=True))
    return allocation._replace(nodes=nodes, elastic_slots=False)


def merge_slots(allocation: Allocation) -> Allocation:
    """Return the allocation with one slot on each node that has any, which has all that they name."""
    nodes = tuple(node._replace(slots=_merged(node.slots)) for node in allocation.nodes)
    return allocation._replace(nodes=nodes, elastic_slots=False)


def _merged(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
    gpus = [slot.gpus for slot in slots if slot.gpus is not None]
    cpus = [slot.cpus for slot in slots if slot.cpus is not None]
    merged = Slot(
        tuple(dict.fromkeys(chain.from_iterable(gpus))) if gpus else None,
        tuple(dict.fromkeys(chain.from_iterable(cpus))) if cpus else None,
    )
    return (merged,) if slots else ()


def this_machine(slots: int, agent: str = LOCAL) -> Allocation:
    """Return the allocation of a job without hosts: the head's machine."""
    node = Node(0, "localhost", (Slot(),) * slots, agent, origin="this machine")
    return Allocation((node,), "this machine", elastic_slots=True)


def divide(count: int, gpus: tuple[str, ...] | None, cpus: tuple[int, ...] | None, where: str) -> tuple[Slot, ...]:
    """Return slots that share the GPUs equally and the CPUs almost equally, in contiguous blocks; `where` is for messages."""
    if not count:
        return ()
    if gpus and len(gpus) % count:
        raise UsageError(
            "host-gpus",
            f"{where}: {plural(len(gpus), 'GPU')} cannot be divided equally among {count} slots",
            hint=f"name as many GPUs as slots or a multiple, or write slots={len(gpus)} for one GPU each",
        )
    if cpus is not None and len(cpus) < count:
        message = f"{where}: {plural(len(cpus), 'CPU')} for {count} slots"
        raise UsageError("host-cpus", message, hint="name at least one CPU for each slot")
    if gpus is None and cpus is None:
        return (Slot(),) * count
    per_slot = len(gpus or ()) // count
    each, more = divmod(len(cpus or ()), count)
    starts = [each * index + min(index, more) for index in range(count + 1)]
    return tuple(
        Slot(
            None if gpus is None else gpus[index * per_slot : (index + 1) * per_slot],
            None if cpus is None else cpus[starts[index] : starts[index + 1]],
        )
        for index in range(count)
    )


def _by_host(entries: Sequence[HostEntry]) -> list[tuple[str, str, list[HostEntry]]]:
    """Return name, origin and mentions of each host, in the order of first mentions; each `local` is a host."""
    hosts: dict[object, list[HostEntry]] = {}
    for index, entry in enumerate(entries):
        hosts.setdefault(index if entry.name == LOCAL else entry.name, []).append(entry)
    return [(mentions[0].name, mentions[0].origin, mentions) for mentions in hosts.values()]


def _selected_slots(node: Node, mentions: Sequence[HostEntry], source: str, elastic: bool) -> tuple[Slot, ...]:
    """Return the slots of a node that a host list selects: as many as it likes where their number is not known."""
    if not _counts(mentions):
        return node.slots
    count = sum(1 if entry.slots is None else entry.slots for entry in mentions)
    if elastic or node.by_cores:
        return (Slot(),) * count
    if count > len(node.slots):
        message = f"{source} asks for {plural(count, 'slot')} on {node.name}, which has {len(node.slots)} ({node.origin})"
        hint = f"{source} may lower the slots that a host has, not raise them; --oversubscribe allows more ranks than slots"
        raise UsageError("host-slots", message, hint=hint)
    return node.slots[:count]


def _counts(mentions: Sequence[HostEntry]) -> bool:
    """Return whether the mentions of a host say how many of its slots they mean."""
    return len(mentions) > 1 or mentions[0].slots is not None


def _agreed(mentions: Sequence[HostEntry], field: str) -> Any:
    """Return the value that the mentions of a host agree on, None if none gives one; raises UsageError if they differ."""
    given = [(getattr(entry, field), entry) for entry in mentions if getattr(entry, field) is not None]
    for value, entry in given[1:]:
        if value != given[0][0]:
            message = f"{entry.name} is named with {field} '{given[0][0]}' and with '{value}'"
            context = _origins((given[0][1], entry))
            raise UsageError("host-conflict", message, context=context, hint=f"give the host one {field}")
    return given[0][0] if given else None


def _origins(mentions: Sequence[HostEntry]) -> list[str]:
    return [f"{entry.origin}: {entry.name}" for entry in mentions]
