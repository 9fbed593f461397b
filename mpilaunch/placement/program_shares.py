"""Shares: the ranks of a job of several programs (`a : b`), placed one program after the other.

Pure: it divides the slots of the allocation among the programs; where the ranks of each go is for `mapping` to say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import MAX_SLOTS, Allocation, Node
from mpilaunch.hosts.node_facts import Cpu
from mpilaunch.placement.mapping import JobMap, Placement, map_ranks
from mpilaunch.placement.policy import MappingPolicy


class Share(NamedTuple):
    """One program's part of a job.

    Attributes:
        name: of the program, for errors.
        policy: as for a job of its own.
        slots: how many slots it may have of which nodes, by index; None for all.
    """

    name: str
    policy: MappingPolicy
    slots: Mapping[int, int] | None = None


def map_apps(
    allocation: Allocation, shares: Sequence[Share], topologies: Mapping[int, Sequence[Cpu]] | None = None
) -> JobMap:
    """Return the map of a job, of several programs the ranks of the first before those of the next.

    Each program is mapped by itself, in the slots that those before it have left. Where these do not suffice and it may have
    more ranks than slots, the others of its ranks are mapped to all slots again. A UsageError is told of its program.

    Args:
        topologies: see `map_ranks`.
    """
    if len(shares) == 1:
        return map_ranks(allocation, shares[0].policy, topologies)
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
            left = ", in what is left" if app else ""
            raise error.within(f"program {app + 1} ({share.name}){left}") from None
    return JobMap(tuple(placements), tuple(sorted(taken)))


def _rounds(
    allocation: Allocation, share: Share, taken: Mapping[int, Sequence[int]], first: int
) -> list[tuple[MappingPolicy, bool]]:
    """Return what to map of a program's ranks to the slots that are left, and what to all slots again."""
    policy = share.policy
    if not taken or policy.ranks is None or not (policy.oversubscribe or allocation.elastic_slots):
        return [(policy, False)]
    free = sum(len(_left(node, share, taken, first)) for node in allocation.nodes)
    if policy.ranks <= free or policy.per_node is not None:
        return [(policy, policy.ranks > free)]
    rounds = [(policy._replace(ranks=policy.ranks - free), True)]
    return [(policy._replace(ranks=free), False), *rounds] if free else rounds


def _left(node: Node, share: Share, taken: Mapping[int, Sequence[int]], first: int) -> list[int]:
    """Return the slots of a node that a program may have: no rank has them, and none is for a rank of another program."""
    most = len(node.slots) if share.slots is None else share.slots.get(node.index, 0)
    own = range(first, first + (share.policy.ranks or MAX_SLOTS))
    used = set(taken.get(node.index, ()))
    places = [place for place, slot in enumerate(node.slots) if slot.rank is None or slot.rank in own]
    return [place for place in places if place not in used][:most]


def _part(
    allocation: Allocation, share: Share, taken: Mapping[int, Sequence[int]], first: int, *, again: bool
) -> tuple[Allocation, dict[int, list[int]]]:
    """Return the allocation of one program of the job, and the slots of the job that its nodes' slots are.

    Args:
        taken: the slots of each node that ranks have, one item for each rank.
        first: the rank of the job that is rank 0 to the mapper.
        again: slots that ranks have are offered too.
    """
    nodes, slots_of = [], {}
    for node in allocation.nodes:
        if share.slots is not None and node.index not in share.slots:
            continue
        used = taken.get(node.index, ())
        slots_of[node.index] = list(range(len(node.slots))) if again else _left(node, share, taken, first)
        slots = [node.slots[place] for place in slots_of[node.index]]
        ranks = [None if again or slot.rank is None else slot.rank - first for slot in slots]
        nodes.append(
            replace(
                node,
                slots=tuple(slot._replace(rank=rank) for slot, rank in zip(slots, ranks, strict=True)),
                max_slots=None if node.max_slots is None else max(0, node.max_slots - len(used)),
            )
        )
    return allocation._replace(nodes=tuple(nodes)), slots_of
