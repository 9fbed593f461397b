"""Mapping and ranking: the node and slot of each rank.

Pure: an allocation and a policy give a job map, or an error that lists the slots per node. `cpu_binding` chooses the cores.

There are four steps. 1. Slots with a fixed rank take it. 2. Each node gets a number of further ranks (`_quotas`): `map_by` slot
fills one node after the other, `map_by` node gives each node one rank in turn. 3. These ranks are numbered by `rank_by`. 4. On
their node, they take the free slots in order.

When oversubscribing, every slot takes one rank first, unless `map_by` is node; the further ranks go to the nodes in turn, as
far as their max_slots allow, and take the slots again in order. This is Open MPI's rule (orte/mca/rmaps/round_robin); by
Hydra's, `cycle`, the nodes are filled again, the first one first, and ranks are numbered as they are placed. A node without
slots runs no rank. With `elastic_slots`, any number of ranks fits in the same way.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, cycle, islice, repeat
from typing import NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import MAX_SLOTS, Allocation, Node
from mpilaunch.hosts.node_facts import Cpu
from mpilaunch.hosts.nodeset import fold, fold_numbers
from mpilaunch.placement.topology import OBJECTS, Object, assign_objects, objects_of, overlapping, round_robin
from mpilaunch.text import numbered_ranks, plural

_SHOWN_GROUPS = 12
"""Limit on the lines of slots per node that the error shows."""


class MappingPolicy(NamedTuple):
    """How the ranks of a job are mapped to nodes and numbered.

    Attributes:
        ranks: number of ranks, None for one per slot (or `per_node` on each node).
        map_by: "slot" fills one node after the other, "node" gives each node one rank in turn; an object (`topology.OBJECTS`)
            fills one node after the other, and gives each object of the node one rank in turn.
        per_node: exactly this many ranks on each node (`-N`, `--map-by ppr:N:node`); with `ranks`, at most this many.
        rank_by: "slot" numbers one node after the other, "node" gives each node a number in turn; an object numbers one node
            after the other, and gives each object of the node a number in turn; None follows `map_by`.
        oversubscribe: more ranks than slots are allowed (never more than max_slots).
        cycle: so they are, and they fill the nodes again, the first one first.
        per_object: exactly this many ranks on each `map_by` object (`--map-by ppr:N:socket`); with `ranks`, at most this many.
        span: give each `map_by` object of all nodes one rank in turn, as if they were one node.
        rank_span: give each `rank_by` object of all nodes a number in turn.
        nolocal: no rank runs on this machine.
        listed: the `Node.index` of each rank, if a file lists them (`map_by` "rankfile" or "seq"), else empty.
        file: that file; None for "seq" with the hostfile.
    """

    ranks: int | None = None
    map_by: str = "slot"
    per_node: int | None = None
    rank_by: str | None = None
    oversubscribe: bool = False
    cycle: bool = False
    per_object: int | None = None
    span: bool = False
    rank_span: bool = False
    nolocal: bool = False
    listed: tuple[int, ...] = ()
    file: str | None = None

    @property
    def needs_topology(self) -> bool:
        """Whether the map depends on the topology of the nodes, which must report it first."""
        return self.per_object is not None or (self.span and self.map_by in OBJECTS) or self.rank_span


class Placement(NamedTuple):
    """Where one rank runs.

    Attributes:
        rank, local_rank: number in the job, and among the job's ranks on its node, from 0.
        node: `Node.index` in the allocation.
        slot: index into `Node.slots`; repeated on a node only if the job oversubscribes or the slots are elastic.
        app: index into `JobSpec.apps`: the program of the rank.
    """

    rank: int
    node: int
    local_rank: int
    slot: int
    app: int = 0


class JobMap(NamedTuple):
    """The placements in rank order, and the indices of the nodes that run at least one rank, in node order."""

    placements: tuple[Placement, ...]
    nodes: tuple[int, ...]

    def by_node(self) -> dict[int, list[Placement]]:
        """Return the placements on each of the nodes."""
        placements_of: dict[int, list[Placement]] = {index: [] for index in self.nodes}
        for placement in self.placements:
            placements_of[placement.node].append(placement)
        return placements_of


def map_ranks(
    allocation: Allocation, policy: MappingPolicy, topologies: Mapping[int, Sequence[Cpu]] | None = None
) -> JobMap:
    """Return the map of the job; raises UsageError if its ranks do not fit.

    `topologies` has the CPUs of each node by `Node.index`, for a policy that needs them.
    """
    nodes = [node for node in allocation.nodes if node.slots and not (policy.nolocal and node.here)]
    object_counts = {}
    if policy.per_object is not None or policy.span:
        object_counts = {node.index: len(_objects(node, policy.map_by, topologies)) for node in nodes}
    ranks = _rank_count(nodes, policy, object_counts)
    capacities = {node.index: _capacity(node, allocation, policy, object_counts) for node in nodes}
    if not nodes or ranks > sum(capacities.values()):
        raise _not_enough(allocation, policy, ranks, object_counts)
    fixed = _fixed_ranks(nodes, ranks, capacities)
    free_ranks = [rank for rank in range(ranks) if rank not in fixed]
    occupied = Counter(index for index, _ in fixed.values())
    left = {index: limit - occupied[index] for index, limit in capacities.items()}
    if policy.listed and fixed:
        message = f"rank {min(fixed)} has a slot by the slot map, but {policy.file or 'the hostfile'} lists where ranks go"
        raise UsageError("slot-map", message, hint="fix ranks in the slot map or list them in the file, not both")
    if policy.listed:
        order: Iterable[int] = policy.listed[:ranks]
        if any(count > capacities.get(index, 0) for index, count in Counter(order).items()):
            raise _not_enough(allocation, policy, ranks, object_counts)
    elif policy.cycle and policy.rank_by is None and policy.per_object is None:
        turns = {} if policy.map_by == "node" else {node.index: len(node.slots) for node in nodes}
        order = islice(_nodes_in_turn(left, turns), len(free_ranks))
    else:
        quotas = _quotas(nodes, len(free_ranks), left, occupied, policy, object_counts)
        order = _order(nodes, quotas, policy, topologies)
    free_slots = {node.index: _free_slots(node) for node in nodes}
    taken = dict(fixed)
    for rank, index in zip(free_ranks, order, strict=True):
        taken[rank] = (index, next(free_slots[index]))
    local: dict[int, int] = defaultdict(int)
    placements = []
    for rank, (index, slot) in sorted(taken.items()):
        placements.append(Placement(rank, index, local[index], slot))
        local[index] += 1
    return JobMap(tuple(placements), tuple(sorted(local)))


def _objects(node: Node, kind: str, topologies: Mapping[int, Sequence[Cpu]] | None) -> list[Object]:
    """Return the objects of a node that ranks are mapped to; without a kind of object, the node is one."""
    if kind not in OBJECTS:
        return [()]
    if topologies is None:
        raise ValueError("this policy needs the topology of the nodes")
    return objects_of(node.name, topologies[node.index], kind)


def _rank_count(nodes: Sequence[Node], policy: MappingPolicy, object_counts: Mapping[int, int]) -> int:
    """Return the number of ranks of the job; raises UsageError."""
    for value, unit in ((policy.ranks, "ranks"), (policy.per_node, "ranks on each node")):
        if value is not None and value < 1:
            raise UsageError("rank-count", f"{value} {unit} asked for", hint="ask for 1 or more")
    ranks = policy.ranks
    if policy.listed and ranks is not None and ranks > len(policy.listed):
        message = f"{plural(ranks, 'rank')} asked for, but only {len(policy.listed)} are listed"
        raise UsageError("rank-count", message, hint="list a host for each rank, or lower -np")
    if ranks is None and policy.listed:
        ranks = len(policy.listed)
    elif ranks is None and policy.per_object is not None:
        ranks = policy.per_object * sum(object_counts.values())
    elif ranks is None:
        ranks = sum(len(node.slots) if policy.per_node is None else policy.per_node for node in nodes)
    if ranks > MAX_SLOTS:
        raise UsageError("rank-count", f"{ranks:,} ranks asked for", hint=f"a job has {MAX_SLOTS:,} ranks at most")
    return ranks


def _capacity(node: Node, allocation: Allocation, policy: MappingPolicy, object_counts: Mapping[int, int]) -> float:
    """Return the limit on the ranks of a node."""
    unbounded = policy.oversubscribe or policy.cycle or allocation.elastic_slots
    per_object = None if policy.per_object is None else policy.per_object * object_counts[node.index]
    limits = (None if unbounded else len(node.slots), node.max_slots, policy.per_node, per_object)
    return min((limit for limit in limits if limit is not None), default=math.inf)


def _fixed_ranks(nodes: Sequence[Node], ranks: int, capacities: Mapping[int, float]) -> dict[int, tuple[int, int]]:
    """Return the node and slot of each rank that a slot map fixed; raises UsageError."""
    fixed: dict[int, tuple[int, int]] = {}
    for node in nodes:
        own = {slot.rank: (node.index, index) for index, slot in enumerate(node.slots) if slot.rank is not None}
        for rank in own:
            where = f"{node.name} ({node.origin})"
            if rank >= ranks:
                message = f"a slot of {where} is for rank {rank}, but the job has {plural(ranks, 'rank')}"
                raise UsageError("slot-map", message, hint=f"use {numbered_ranks(ranks)}, or change -np")
            if rank in fixed:
                first = next(other for other in nodes if other.index == fixed[rank][0])
                message = f"rank {rank} has a slot of {first.name} ({first.origin}) and one of {where}"
                raise UsageError("slot-map", message, hint="give each slot a rank of its own")
        if len(own) > capacities[node.index]:
            most = plural(int(capacities[node.index]), "rank")
            message = f"{plural(len(own), 'slot')} of {node.name} with a fixed rank, but at most {most} may run there"
            raise UsageError("slot-map", message, hint="change the slot map or -N")
        fixed.update(own)
    return fixed


def _quotas(
    nodes: Sequence[Node],
    ranks: int,
    left: Mapping[int, float],
    occupied: Mapping[int, int],
    policy: MappingPolicy,
    object_counts: Mapping[int, int],
) -> dict[int, int]:
    """Return the number of ranks of each node, without the fixed ones; `ranks` is their sum.

    `left` has the limits on these ranks, and `occupied` the number of fixed ones.
    """
    room = {}
    for node in nodes:
        # A node is not oversubscribed before it has the explicit number of ranks per node or object.
        explicit = policy.per_node or (policy.per_object or 0) * object_counts.get(node.index, 0)
        room[node.index] = int(min(left[node.index], max(len(node.slots), explicit) - occupied[node.index]))
    if policy.map_by == "node" or policy.span:
        # Where all slots together do not suffice, those of a node do not count.
        order = _nodes_in_turn(room if ranks <= sum(room.values()) else left, object_counts)
    else:
        beyond = {index: left[index] - room[index] for index in room}
        order = chain(_node_by_node(room), _nodes_in_turn(beyond, {}))
    quotas = {node.index: 0 for node in nodes}
    for index in islice(order, ranks):
        quotas[index] += 1
    return quotas


def _node_by_node(room: Mapping[int, int]) -> Iterator[int]:
    """Return each node as often as it has room, one node after the other."""
    return (node for node, count in room.items() for _ in range(count))


def _nodes_in_turn(room: Mapping[int, float], turns: Mapping[int, int]) -> Iterator[int]:
    """Yield each node as often as it has room, in rounds; a round has each node once, or as often as `turns` says."""
    left = dict(room)
    while left := {node: count for node, count in left.items() if count > 0}:
        for node in left:
            each = int(min(turns.get(node, 1), left[node]))
            yield from repeat(node, each)
            left[node] -= each


def _order(
    nodes: Sequence[Node], quotas: Mapping[int, int], policy: MappingPolicy, topologies: Mapping[int, Sequence[Cpu]] | None
) -> Iterator[int]:
    """Return the node of each rank that is not fixed, in rank order."""
    rank_by = policy.rank_by or ("node" if policy.map_by == "node" else "slot")
    if policy.rank_span:
        turns = []
        for node in nodes:
            objects = _objects(node, policy.map_by, topologies)
            assigned = [objects[index] for index in assign_objects(len(objects), quotas[node.index], policy.per_object)]
            for ranking_object in _objects(node, rank_by, topologies):
                # A rank that is mapped to the whole node is in all of its objects.
                inside = overlapping(assigned, ranking_object) if objects[0] else range(len(assigned))
                turns.append([(node.index, position) for position in inside])
        return (index for index, _ in round_robin(turns))
    return _nodes_in_turn(quotas, {}) if rank_by == "node" else _node_by_node(quotas)


def _free_slots(node: Node) -> Iterator[int]:
    """Return the slots in the order taken: those without a fixed rank, then all of them repeatedly."""
    free = [index for index, slot in enumerate(node.slots) if slot.rank is None]
    return chain(free, cycle(range(len(node.slots))))


# Ranks that do not fit


def _not_enough(allocation: Allocation, policy: MappingPolicy, ranks: int, object_counts: Mapping[int, int]) -> UsageError:
    usable = [node for node in allocation.nodes if not (policy.nolocal and node.here)]
    total = sum(len(node.slots) for node in usable)
    nodes = plural(len(usable), "node")
    where = f"{allocation.source}, without this machine" if len(usable) < len(allocation.nodes) else allocation.source
    asked = f" with {policy.per_node} on each node" if policy.per_node is not None else ""
    if policy.per_object is not None:
        asked = f" with {policy.per_object} on each {policy.map_by}"
    request = f"{plural(ranks, 'rank')}{asked} do not fit"
    if not usable:
        message, hint = f"--nolocal leaves no node of {allocation.source}", "name other hosts, or leave --nolocal out"
    elif not total:
        message, hint = f"no slots on {nodes} ({where})", "give at least one host a slot, like slots=4"
    elif policy.per_node is not None and ranks > policy.per_node * len(usable):
        message = f"{request} on {nodes} ({where})"
        hint = f"ask for {plural(policy.per_node * len(usable), 'rank')} or fewer, for a higher -N, or for more nodes"
    elif policy.per_object is not None and ranks > (most := policy.per_object * sum(object_counts.values())):
        message = f"{request} on the {plural(sum(object_counts.values()), policy.map_by)} of {nodes} ({where})"
        hint = f"ask for {plural(most, 'rank')} or fewer, or for more on each {policy.map_by}"
    elif policy.oversubscribe or allocation.elastic_slots:
        message = f"{request} in {plural(total, 'slot')} of {nodes} ({where}) with their max_slots"
        hint = "raise max_slots: --oversubscribe does not pass it"
    else:
        message = f"{request} in {plural(total, 'slot')} of {nodes} ({where})"
        hint = "give the hosts more slots (host:N, slots=N), or allow more ranks than slots with --oversubscribe"
    return UsageError("not-enough-slots", message, context=_slots_per_node(usable), hint=hint)


def _slots_per_node(nodes: Sequence[Node]) -> list[str]:
    """Return the slots of each node, equal nodes on one line: `node[01-04]: 2 slots each (hosts.txt:1-4)`."""
    groups: dict[tuple[int, int | None, str], list[Node]] = {}
    for node in nodes:
        groups.setdefault((len(node.slots), node.max_slots, _origin(node)[0]), []).append(node)
    lines = []
    for (slots, max_slots, source), members in groups.items():
        limit = "" if max_slots is None else f", max_slots {max_slots}"
        each = " each" if len(members) > 1 else ""
        numbers = fold_numbers(line for line in (_origin(node)[1] for node in members) if line is not None)
        where = f" ({source}:{numbers})" if numbers else f" ({source})" if source else ""
        lines.append(f"{fold(node.name for node in members)}: {plural(slots, 'slot')}{each}{limit}{where}")
    more = len(lines) - _SHOWN_GROUPS
    return lines if more <= 0 else [*lines[:_SHOWN_GROUPS], f"and {more} more"]


def _origin(node: Node) -> tuple[str, int | None]:
    """Return the source and line number of an origin like `hosts.txt:3`."""
    source, colon, line = node.origin.rpartition(":")
    return (source, int(line)) if colon and line.isdecimal() else (node.origin, None)
