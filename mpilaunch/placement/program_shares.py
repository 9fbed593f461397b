"""Mapping of jobs of several programs (`a : b`), one program after the other.

Pure: it divides the slots of the allocation among the programs; `mapping` maps the ranks of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import MAX_SLOTS, Allocation, Node
from mpilaunch.hosts.node_facts import Cpu
from mpilaunch.placement.mapping import JobMap, MappingPolicy, Placement, map_ranks


class Share(NamedTuple):
    """One program's name, its policy as for a job of its own, and the most slots that it may use by node; None for all."""

    name: str
    policy: MappingPolicy
    slots: Mapping[int, int] | None = None


def map_apps(
    allocation: Allocation, shares: Sequence[Share], topologies: Mapping[int, Sequence[Cpu]] | None = None
) -> JobMap:
    """Return the map of a job, with the ranks of its programs in order; raises UsageError that names the program.

    Each program is mapped by itself to the slots that the programs before it left free. If these do not suffice and it may
    oversubscribe, the rest of its ranks are mapped to all slots again. Where all cycle, or a list has the nodes of all their
    ranks, each goes on after the one before.
    """
    if len(shares) == 1:
        return map_ranks(allocation, shares[0].policy, topologies)
    together = [share for share in shares if (share.policy.cycle or share.policy.listed) and share.slots is None]
    counts = [share.policy.ranks for share in together if share.policy.ranks]
    if len(counts) == len(shares):
        whole = map_ranks(allocation, shares[0].policy._replace(ranks=sum(counts)), topologies)
        apps = chain.from_iterable(repeat(app, count) for app, count in enumerate(counts))
        placed = (place._replace(app=app) for place, app in zip(whole.placements, apps, strict=True))
        return whole._replace(placements=tuple(placed))
    placements: list[Placement] = []
    taken: dict[int, list[int]] = defaultdict(list)
    for app, share in enumerate(shares):
        try:
            for policy, again in _rounds(allocation, share, taken, len(placements)):
                part, slots_of = _part(allocation, share, taken, len(placements), again=again)
                for place in map_ranks(part, policy, topologies).placements:
                    slot = slots_of[place.node][place.slot]
                    placements.append(Placement(len(placements), place.node, len(taken[place.node]), slot, app))
                    taken[place.node].append(slot)
        except UsageError as error:
            scope = ", in the slots that are left" if app else ""
            raise error.within(f"program {app + 1} ({share.name}){scope}") from None
    return JobMap(tuple(placements), tuple(sorted(taken)))


def _rounds(
    allocation: Allocation, share: Share, taken: Mapping[int, Sequence[int]], first: int
) -> list[tuple[MappingPolicy, bool]]:
    """Return the policies by which a program is mapped to free slots (False), and to all slots again (True)."""
    policy = share.policy
    if not taken or not (policy.oversubscribe or allocation.elastic_slots):
        return [(policy, False)]
    usable = [node for node in allocation.nodes if node.slots and (share.slots is None or node.index in share.slots)]
    of_nodes = [len(_free_slots(node, share, taken, first)) for node in usable]
    if policy.ranks is None:
        return [(policy, policy.per_node is not None and min(of_nodes, default=0) < policy.per_node)]
    free = sum(of_nodes)
    if policy.ranks <= free or policy.per_node is not None:
        return [(policy, policy.ranks > free)]
    rounds = [(policy._replace(ranks=policy.ranks - free), True)]
    return [(policy._replace(ranks=free), False), *rounds] if free else rounds


def _free_slots(node: Node, share: Share, taken: Mapping[int, Sequence[int]], first: int) -> list[int]:
    """Return the slots of a node that a program may use: free ones, and not fixed for another program's rank."""
    most = len(node.slots) if share.slots is None else share.slots.get(node.index, 0)
    own = range(first, first + (share.policy.ranks or MAX_SLOTS))
    used = set(taken.get(node.index, ()))
    allowed = [index for index, slot in enumerate(node.slots) if slot.rank is None or slot.rank in own]
    return [index for index in allowed if index not in used][:most]


def _part(
    allocation: Allocation, share: Share, taken: Mapping[int, Sequence[int]], first: int, *, again: bool
) -> tuple[Allocation, dict[int, list[int]]]:
    """Return the allocation of one program, and for each of its nodes the job's numbers of its slots.

    Args:
        taken: the slot of each rank mapped so far, by node.
        first: the job's number of the program's first rank.
        again: taken slots are offered too.
    """
    nodes, slots_of = [], {}
    for node in allocation.nodes:
        if share.slots is not None and node.index not in share.slots:
            continue
        own = slots_of[node.index] = list(range(len(node.slots))) if again else _free_slots(node, share, taken, first)
        ranks = [node.slots[slot].rank for slot in own]
        slots = tuple(
            node.slots[slot]._replace(rank=None if again or rank is None else rank - first)
            for slot, rank in zip(own, ranks, strict=True)
        )
        max_slots = None if node.max_slots is None else max(0, node.max_slots - len(taken.get(node.index, ())))
        nodes.append(node._replace(slots=slots, max_slots=max_slots))
    return allocation._replace(nodes=tuple(nodes)), slots_of
