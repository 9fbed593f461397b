"""The error of ranks that do not fit: what was asked for, the slots counted per node, and what helps.

Pure. Users meet this one more often than any other: it says what was counted, and where each number comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import LOCAL, Allocation, Node
from mpilaunch.hosts.nodeset import fold, fold_numbers
from mpilaunch.placement.policy import MappingPolicy
from mpilaunch.text import plural

_SHOWN_GROUPS = 12
"""Lines of slots counted per node that the error shows at most."""


def not_enough(
    allocation: Allocation, policy: MappingPolicy, ranks: int, places: Mapping[int, int] = MappingProxyType({})
) -> UsageError:
    """Return the error of `ranks` ranks that do not fit; `places` is how many `map_by` objects each node has."""
    usable = [node for node in allocation.nodes if not (policy.nolocal and node.agent == LOCAL)]
    total = sum(len(node.slots) for node in usable)
    nodes = plural(len(usable), "node")
    where = f"{allocation.source}, without this machine" if len(usable) < len(allocation.nodes) else allocation.source
    asked = f" with {policy.per_node} on each node" if policy.per_node is not None else ""
    if policy.per_object is not None:
        asked = f" with {policy.per_object} on each {policy.map_by}"
    wanted = f"{plural(ranks, 'rank')}{asked} do not fit"
    if not usable:
        message, hint = f"--nolocal leaves no node of {allocation.source}", "name other hosts, or leave --nolocal out"
    elif not total:
        message, hint = f"no slots on {nodes} ({where})", "give at least one host a slot, like slots=4"
    elif policy.per_node is not None and ranks > policy.per_node * len(usable):
        message = f"{wanted} on {nodes} ({where})"
        hint = f"ask for {policy.per_node * len(usable)} ranks or fewer, for a higher -N, or for more nodes"
    elif policy.per_object is not None and ranks > (most := policy.per_object * sum(places.values())):
        message = f"{wanted} on the {plural(sum(places.values()), policy.map_by)} of {nodes} ({where})"
        hint = f"ask for {most} ranks or fewer, or for more on each {policy.map_by}"
    elif policy.oversubscribe or allocation.elastic_slots:
        message = f"{wanted} in {plural(total, 'slot')} of {nodes} ({where}) with their max_slots"
        hint = "raise max_slots: --oversubscribe does not pass it"
    else:
        message = f"{wanted} in {plural(total, 'slot')} of {nodes} ({where})"
        hint = "give the hosts more slots (host:N, slots=N), or allow more ranks than slots with --oversubscribe"
    return UsageError("not-enough-slots", message, context=_counted(usable), hint=hint)


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
        lines.append(f"{fold(node.name for node in members)}: {plural(slots, 'slot')}{each}{limit}{where}")
    more = len(lines) - _SHOWN_GROUPS
    return lines if more <= 0 else [*lines[:_SHOWN_GROUPS], f"and {more} more"]


def _origin(node: Node) -> tuple[str, int | None]:
    """Return the source and the line of `hosts.txt:3`."""
    source, colon, line = node.origin.rpartition(":")
    return (source, int(line)) if colon and line.isdecimal() else (node.origin, None)
