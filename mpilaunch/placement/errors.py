"""The error for ranks that do not fit: the request, the slots per node with their origin, and a remedy. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import LOCAL, Allocation, Node
from mpilaunch.hosts.nodeset import fold, fold_numbers
from mpilaunch.placement.policy import MappingPolicy
from mpilaunch.text import plural

_SHOWN_GROUPS = 12
"""Limit on the lines of slots per node that the error shows."""


def not_enough(
    allocation: Allocation, policy: MappingPolicy, ranks: int, objects: Mapping[int, int] = MappingProxyType({})
) -> UsageError:
    """Return the error for `ranks` ranks that do not fit; `objects` counts the `map_by` objects of each node."""
    usable = [node for node in allocation.nodes if not (policy.nolocal and node.agent == LOCAL)]
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
    elif policy.per_object is not None and ranks > (most := policy.per_object * sum(objects.values())):
        message = f"{request} on the {plural(sum(objects.values()), policy.map_by)} of {nodes} ({where})"
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
