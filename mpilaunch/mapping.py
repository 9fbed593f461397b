"""Mapping and ranking: which rank runs in which slot of which node.

Pure: an allocation and a policy give a job map, or an error that lists the slots counted per node.

Four steps. 1. Slots with a fixed rank take it. 2. Each node gets its number of further ranks: `map_by` slot fills a node
before the next, `map_by` node deals one to each in turn. 3. The numbers of these ranks follow `rank_by`. 4. On a node they
take the free slots in order.

Oversubscribed, every slot has its rank first; then each further rank goes to the node with the fewest ranks per slot (the
first of equals) that is below its max_slots, and takes its node's slots once more in their order. A node without slots runs
nothing. Where nobody said how many slots there are (`elastic_slots`), any number of ranks fits, in the same way.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice

from mpilaunch.allocation import MAX_SLOTS, Allocation, Node
from mpilaunch.errors import UsageError
from mpilaunch.nodeset import fold, fold_numbers


@dataclass(frozen=True)
class Placement:
    """Where one rank runs.

    Attributes:
        rank: place in the job, from 0.
        node: `Node.index` in the allocation.
        local_rank: place among the job's ranks on that node, from 0.
        slot: index into `Node.slots`; it may repeat on a node only when the job oversubscribes or the slots are elastic.
    """

    rank: int
    node: int
    local_rank: int
    slot: int


@dataclass(frozen=True)
class JobMap:
    """The placements in rank order, and the indices of the nodes that run at least one rank, in node order."""

    placements: tuple[Placement, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class MappingPolicy:
    """What the user asked for.

    Attributes:
        ranks: number of ranks, None for one per slot (or `per_node` on each node).
        map_by: "slot" fills a node before the next, "node" deals one rank to each node in turn.
        per_node: exactly this many ranks on each node (`-N`, `--map-by ppr:N:node`); with `ranks`, this many at most.
        rank_by: "slot" numbers the ranks of a node before those of the next, "node" deals numbers round the nodes, None
            follows `map_by`.
        oversubscribe: more ranks than slots are allowed (never more than max_slots).
    """

    ranks: int | None = None
    map_by: str = "slot"
    per_node: int | None = None
    rank_by: str | None = None
    oversubscribe: bool = False


def map_ranks(allocation: Allocation, policy: MappingPolicy) -> JobMap:
    """Return the map of the job; raises UsageError when it does not fit."""
    nodes = [node for node in allocation.nodes if node.slots]
    ranks = _rank_count(nodes, policy)
    capacities = {node.index: _capacity(node, allocation, policy) for node in nodes}
    if not nodes or ranks > sum(capacities.values()):
        raise _not_enough(allocation, policy, ranks)
    fixed = _fixed_ranks(nodes, ranks, capacities)
    free_ranks = [rank for rank in range(ranks) if rank not in fixed]
    quotas = _quotas(nodes, len(free_ranks), capacities, fixed, policy)
    order = _DEALS[policy.rank_by or policy.map_by](quotas)
    free_slots = {node.index: _free_slots(node) for node in nodes}
    places = dict(fixed)
    for rank, node in zip(free_ranks, order, strict=True):
        places[rank] = (node, next(free_slots[node]))
    return _job_map(places)


def _rank_count(nodes: Sequence[Node], policy: MappingPolicy) -> int:
    """Return the number of ranks of the job."""
    for value, what in ((policy.ranks, "ranks"), (policy.per_node, "ranks on each node")):
        if value is not None and value < 1:
            raise UsageError("rank-count", f"{value} {what} asked for", hint="ask for 1 or more")
    ranks = policy.ranks
    if ranks is None:
        ranks = sum(len(node.slots) if policy.per_node is None else policy.per_node for node in nodes)
    if ranks > MAX_SLOTS:
        raise UsageError("rank-count", f"{ranks:,} ranks asked for", hint=f"a job has {MAX_SLOTS:,} ranks at most")
    return ranks


def _capacity(node: Node, allocation: Allocation, policy: MappingPolicy) -> float:
    """Return how many ranks may run on a node at most."""
    unbounded = policy.oversubscribe or allocation.elastic_slots
    limits = (
        math.inf if unbounded else len(node.slots),
        math.inf if node.max_slots is None else node.max_slots,
        math.inf if policy.per_node is None else policy.per_node,
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
) -> dict[int, int]:
    """Return how many of the ranks that are not fixed each node runs."""
    taken = {node.index: 0 for node in nodes}
    for node, _ in fixed.values():
        taken[node] += 1
    room = {
        node.index: int(min(capacities[node.index], max(len(node.slots), policy.per_node or 0))) - taken[node.index]
        for node in nodes
    }
    quotas = {node.index: 0 for node in nodes}
    for node in islice(_DEALS[policy.map_by](room), ranks):
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


def _round_the_nodes(room: Mapping[int, int]) -> Iterator[int]:
    """Return nodes in turn, one round after the other, each as often as it has room."""
    rounds = 0
    while room := {node: count for node, count in room.items() if count > rounds}:
        yield from room
        rounds += 1


_DEALS = {"slot": _node_by_node, "node": _round_the_nodes}


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


# The error


_SHOWN_GROUPS = 12
"""Lines of slots counted per node that the error shows at most."""


def _not_enough(allocation: Allocation, policy: MappingPolicy, ranks: int) -> UsageError:
    total = sum(len(node.slots) for node in allocation.nodes)
    nodes = _plural(len(allocation.nodes), "node")
    asked = f" with {policy.per_node} on each node" if policy.per_node is not None else ""
    limited = policy.oversubscribe or allocation.elastic_slots
    if not total:
        message, hint = f"no slots on {nodes} ({allocation.source})", "give at least one host a slot, like slots=4"
    elif policy.per_node is not None and ranks > policy.per_node * len(allocation.nodes):
        message = f"{_plural(ranks, 'rank')}{asked} do not fit on {nodes} ({allocation.source})"
        hint = f"ask for {policy.per_node * len(allocation.nodes)} ranks or fewer, for a higher -N, or for more nodes"
    else:
        message = f"{_plural(ranks, 'rank')}{asked} do not fit in {_plural(total, 'slot')} of {nodes} ({allocation.source})"
        hint = "give the hosts more slots (host:N, slots=N), or allow more ranks than slots with --oversubscribe"
        if limited:
            message += " with their max_slots"
            hint = "raise max_slots: --oversubscribe does not pass it"
    return UsageError("not-enough-slots", message, context=_counted(allocation.nodes), hint=hint)


def _counted(nodes: Sequence[Node]) -> list[str]:
    """Return the slots per node, nodes with the same number together: `node[01-04]: 2 slots each (hosts.txt:1-4)`."""
    groups: dict[tuple[int, int | None, str], list[Node]] = {}
    for node in nodes:
        groups.setdefault((len(node.slots), node.max_slots, _origin(node)[0]), []).append(node)
    lines = []
    for (slots, max_slots, source), members in groups.items():
        limit = "" if max_slots is None else f", max_slots {max_slots}"
        each = " each" if len(members) > 1 else ""
        numbers = fold_numbers(line for line in (_origin(node)[1] for node in members) if line is not None)
        where = f" ({source}:{numbers})" if numbers else f" ({source})" if source else ""
        lines.append(f"{fold(node.name for node in members)}: {_plural(slots, 'slot')}{each}{limit}{where}")
    more = len(lines) - _SHOWN_GROUPS
    return lines if more <= 0 else [*lines[:_SHOWN_GROUPS], f"and {more} more"]


def _origin(node: Node) -> tuple[str, int | None]:
    """Return the source and the line of `hosts.txt:3`."""
    source, colon, line = node.origin.rpartition(":")
    return (source, int(line)) if colon and line.isdecimal() else (node.origin, None)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
