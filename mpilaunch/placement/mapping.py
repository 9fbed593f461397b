"""Mapping and ranking: which rank runs in which slot of which node.

Pure: an allocation and a policy give a job map, or an error that lists the slots counted per node.

Four steps. 1. Slots with a fixed rank take it. 2. Each node gets its number of further ranks: `map_by` slot fills a node
before the next, `map_by` node deals one to each in turn, and so on (`_quotas`). 3. The numbers of these ranks follow `rank_by`.
4. On a node they take the free slots in order.

All this is about nodes. Which place inside its node a rank has (the socket, the core) is `cpubinding`'s, which knows the nodes.
Where the number of ranks on a node depends on what it is made of (`needs_topology`), the nodes have to be asked first.

Oversubscribed, every slot has its rank first; then each further rank goes to the node with the fewest ranks per slot (the
first of equals) that is below its max_slots, and takes its node's slots once more in their order. A node without slots runs
nothing. Where nobody said how many slots there are (`elastic_slots`), any number of ranks fits, in the same way.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, cycle, islice, repeat
from typing import NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import LOCAL, MAX_SLOTS, Allocation, Node
from mpilaunch.hosts.node_facts import Cpu
from mpilaunch.placement.errors import not_enough
from mpilaunch.placement.policy import MappingPolicy
from mpilaunch.placement.topology import OBJECTS, Object, assign_objects, objects_of, overlapping, round_robin
from mpilaunch.text import plural


class Placement(NamedTuple):
    """Where one rank runs.

    Attributes:
        rank: place in the job, from 0.
        node: `Node.index` in the allocation.
        local_rank: place among the job's ranks on that node, from 0.
        slot: index into `Node.slots`; it may repeat on a node only when the job oversubscribes or the slots are elastic.
        app: index into `JobSpec.apps`: which program the rank runs.
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


def map_ranks(
    allocation: Allocation, policy: MappingPolicy, topologies: Mapping[int, Sequence[Cpu]] | None = None
) -> JobMap:
    """Return the map of the job; raises UsageError when it does not fit.

    Args:
        topologies: the CPUs of each node, by `Node.index`; for a policy that needs them.
    """
    nodes = [node for node in allocation.nodes if node.slots and not (policy.nolocal and node.agent == LOCAL)]
    places = {}
    if policy.per_object is not None or policy.span:
        places = {node.index: len(_objects(node, policy.map_by, topologies)) for node in nodes}
    ranks = _rank_count(nodes, policy, places)
    capacities = {node.index: _capacity(node, allocation, policy, places) for node in nodes}
    if not nodes or ranks > sum(capacities.values()):
        raise not_enough(allocation, policy, ranks, places)
    fixed = _fixed_ranks(nodes, ranks, capacities)
    free_ranks = [rank for rank in range(ranks) if rank not in fixed]
    if policy.listed and fixed:
        told = f"rank {min(fixed)} has a slot by the slot map, but {policy.file or 'the hostfile'} lists where ranks go"
        raise UsageError("slot-map", told, hint="leave the ranks out of the slot map, or say it there alone")
    if policy.listed:
        order: Iterable[int] = _listed(nodes, ranks, capacities, policy, allocation)
    else:
        quotas = _quotas(nodes, len(free_ranks), capacities, fixed, policy, places)
        order = _order(nodes, quotas, policy, topologies)
    free_slots = {node.index: _free_slots(node) for node in nodes}
    taken = dict(fixed)
    for rank, node in zip(free_ranks, order, strict=True):
        taken[rank] = (node, next(free_slots[node]))
    return _job_map(taken)


def _objects(node: Node, kind: str, topologies: Mapping[int, Sequence[Cpu]] | None) -> list[Object]:
    """Return the objects of a node that a policy deals ranks to; a node as a whole is one."""
    if kind not in OBJECTS:
        return [()]
    if topologies is None:
        raise ValueError("this policy needs the topology of the nodes")
    return objects_of(node.name, topologies[node.index], kind)


def _rank_count(nodes: Sequence[Node], policy: MappingPolicy, places: Mapping[int, int]) -> int:
    """Return the number of ranks of the job."""
    for value, what in ((policy.ranks, "ranks"), (policy.per_node, "ranks on each node")):
        if value is not None and value < 1:
            raise UsageError("rank-count", f"{value} {what} asked for", hint="ask for 1 or more")
    ranks = policy.ranks
    if policy.listed and ranks is not None and ranks > len(policy.listed):
        told = f"{plural(ranks, 'rank')} asked for, but only {len(policy.listed)} are listed"
        raise UsageError("rank-count", told, hint="list a host for each rank, or lower -np")
    if ranks is None and policy.listed:
        ranks = len(policy.listed)
    elif ranks is None and policy.per_object is not None:
        ranks = policy.per_object * sum(places.values())
    elif ranks is None:
        ranks = sum(len(node.slots) if policy.per_node is None else policy.per_node for node in nodes)
    if ranks > MAX_SLOTS:
        raise UsageError("rank-count", f"{ranks:,} ranks asked for", hint=f"a job has {MAX_SLOTS:,} ranks at most")
    return ranks


def _capacity(node: Node, allocation: Allocation, policy: MappingPolicy, places: Mapping[int, int]) -> float:
    """Return how many ranks may run on a node at most."""
    unbounded = policy.oversubscribe or allocation.elastic_slots
    limits = (
        math.inf if unbounded else len(node.slots),
        math.inf if node.max_slots is None else node.max_slots,
        math.inf if policy.per_node is None else policy.per_node,
        math.inf if policy.per_object is None else policy.per_object * places[node.index],
    )
    return min(limits)


def _fixed_ranks(nodes: Sequence[Node], ranks: int, capacities: Mapping[int, float]) -> dict[int, tuple[int, int]]:
    """Return node and slot of each rank that a slot map fixed."""
    fixed: dict[int, tuple[int, int]] = {}
    for node in nodes:
        own = {slot.rank: (node.index, place) for place, slot in enumerate(node.slots) if slot.rank is not None}
        for rank in own:
            where = f"{node.name} ({node.origin})"
            if rank >= ranks:
                told = f"a slot of {where} is for rank {rank}, but the job has {ranks} ranks"
                raise UsageError("slot-map", told, hint=f"ranks are 0 to {ranks - 1}; change the slot map or -np")
            if rank in fixed:
                first = next(other for other in nodes if other.index == fixed[rank][0])
                told = f"rank {rank} has a slot of {first.name} ({first.origin}) and one of {where}"
                raise UsageError("slot-map", told, hint="give each slot a rank of its own")
        if len(own) > capacities[node.index]:
            told = f"{len(own)} slots of {node.name} have fixed ranks, but {capacities[node.index]} ranks may run there"
            raise UsageError("slot-map", told, hint="change the slot map or -N")
        fixed.update(own)
    return fixed


def _quotas(
    nodes: Sequence[Node],
    ranks: int,
    capacities: Mapping[int, float],
    fixed: Mapping[int, tuple[int, int]],
    policy: MappingPolicy,
    places: Mapping[int, int],
) -> dict[int, int]:
    """Return how many of the ranks that are not fixed each node runs."""
    taken = {node.index: 0 for node in nodes}
    for node, _ in fixed.values():
        taken[node] += 1
    # A number on each node or object that was said outright is reached before a node counts as oversubscribed.
    told = {node.index: policy.per_node or (policy.per_object or 0) * places.get(node.index, 0) for node in nodes}
    room = {
        node.index: int(min(capacities[node.index], max(len(node.slots), told[node.index]))) - taken[node.index]
        for node in nodes
    }
    deal = _node_by_node(room)
    if policy.map_by == "node" or policy.span:
        deal = _round_the_nodes(room, places)
    quotas = {node.index: 0 for node in nodes}
    for node in islice(deal, ranks):
        quotas[node] += 1
    # What is left finds every slot taken: only a job that may oversubscribe comes here.
    slots = {node.index: len(node.slots) for node in nodes}
    load = [((taken[node] + quotas[node]) / slots[node], node) for node in quotas]
    heapq.heapify(load)
    for _ in range(ranks - sum(quotas.values())):
        node = _least_loaded(load, taken, quotas, capacities)
        quotas[node] += 1
        heapq.heapreplace(load, ((taken[node] + quotas[node]) / slots[node], node))
    return quotas


def _least_loaded(
    load: list[tuple[float, int]],
    taken: Mapping[int, int],
    quotas: Mapping[int, int],
    capacities: Mapping[int, float],
) -> int:
    """Return the first node of the heap that is not full; full ones leave the heap for good."""
    while True:
        node = load[0][1]
        if taken[node] + quotas[node] < capacities[node]:
            return node
        heapq.heappop(load)


def _node_by_node(room: Mapping[int, int]) -> Iterator[int]:
    """Return nodes in order, each as often as it has room."""
    return (node for node, count in room.items() for _ in range(count))


def _round_the_nodes(room: Mapping[int, int], places: Mapping[int, int]) -> Iterator[int]:
    """Return nodes in turn, one round after the other, each as often as it has room, and in each round once for each place."""
    left = dict(room)
    while left := {node: count for node, count in left.items() if count > 0}:
        for node in left:
            each = min(places.get(node, 1), left[node])
            yield from repeat(node, each)
            left[node] -= each


def _order(
    nodes: Sequence[Node],
    quotas: Mapping[int, int],
    policy: MappingPolicy,
    topologies: Mapping[int, Sequence[Cpu]] | None,
) -> Iterator[int]:
    """Return the node of each rank that is not fixed, in the order of their numbers."""
    rank_by = policy.rank_by or ("node" if policy.map_by == "node" else "slot")
    if policy.rank_span:
        turns = []
        for node in nodes:
            found = _objects(node, policy.map_by, topologies)
            own = [found[one] for one in assign_objects(len(found), quotas[node.index], policy.per_object)]
            for one in _objects(node, rank_by, topologies):
                # A rank that is mapped to its node as a whole is in every object of it.
                inside = overlapping(own, one) if found[0] else range(len(own))
                turns.append([(node.index, place) for place in inside])
        return (node for node, _ in round_robin(turns))
    return _round_the_nodes(quotas, {}) if rank_by == "node" else _node_by_node(quotas)


def _listed(
    nodes: Sequence[Node], ranks: int, capacities: Mapping[int, float], policy: MappingPolicy, allocation: Allocation
) -> tuple[int, ...]:
    """Return the node of each rank as a list says it, when the slots are enough for that."""
    chosen = policy.listed[:ranks]
    for node, count in Counter(chosen).items():
        if count > capacities.get(node, 0):
            raise not_enough(allocation, policy, ranks)
    return chosen


def _free_slots(node: Node) -> Iterator[int]:
    """Return the slots that the node's ranks take: those without a fixed rank, then all of them again and again."""
    free = [place for place, slot in enumerate(node.slots) if slot.rank is None]
    return chain(free, cycle(range(len(node.slots))))


def _job_map(places: Mapping[int, tuple[int, int]]) -> JobMap:
    """Return the map, with each rank's place among the ranks of its node."""
    local: dict[int, int] = defaultdict(int)
    placements = []
    for rank in sorted(places):
        node, slot = places[rank]
        placements.append(Placement(rank, node, local[node], slot))
        local[node] += 1
    return JobMap(tuple(placements), tuple(sorted(local)))
