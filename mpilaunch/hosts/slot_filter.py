"""Filters of slots, as in DeepSpeed: `node01:0,2@node02` is slots 0 and 2 of node01 and all slots of node02.

Pure: an allocation and a text give an allocation, in the same order. A selected slot has the GPU of its number, unless the
hostfile names its GPUs.
"""

from __future__ import annotations

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import Allocation, Node, Slot
from mpilaunch.hosts.nodeset import Span, fold, parse_numbers


def filter_slots(allocation: Allocation, text: str, flag: str) -> Allocation:
    """Return the allocation with only the slots that the text of --include names, or without those of --exclude."""
    named = _read(text, flag, {node.name: node for node in allocation.nodes}, allocation)
    exclude = flag == "--exclude"
    nodes: list[Node] = []
    for node in allocation.nodes:
        numbers = range(len(node.slots))
        own = set(named[node.name] or numbers) if node.name in named else set()
        chosen = [number for number in numbers if (number in own) != exclude]
        if chosen:
            slots = tuple(_with_gpu(node.slots[number], number) for number in chosen)
            nodes.append(node._replace(index=len(nodes), slots=slots))
    if not nodes:
        raise UsageError("host-slots", f"{flag} {text} leaves no slot", hint="leave a host out of the list")
    return allocation._replace(nodes=tuple(nodes), elastic_slots=False)


def _read(text: str, flag: str, nodes: dict[str, Node], allocation: Allocation) -> dict[str, set[int]]:
    """Return the numbers of the slots by host; none for all slots of a host."""
    named: dict[str, set[int]] = {}
    for item in Span.of(text, flag).split("@"):
        colon = item.text not in nodes and ":" in item.text  # an IPv6 address has colons too
        name = item.text.rpartition(":")[0] if colon else item.text
        if name not in nodes:
            context = [f"{allocation.source} has {fold(nodes)}"]
            hint = f"{flag} chooses among these: HOST, or HOST:0,2 for some of its slots, joined by @"
            raise UsageError("host-unknown", f"{flag}: '{name}' is not in {allocation.source}", context=context, hint=hint)
        numbers = set(parse_numbers(item.part(len(name) + 1))) if colon else set()
        if missing := sorted(numbers - set(range(len(nodes[name].slots)))):
            message = f"{flag}: {name} has no slot {missing[0]}, it has {len(nodes[name].slots)} ({nodes[name].origin})"
            raise UsageError("host-slots", message, hint="slots are numbered from 0")
        named[name] = named.get(name, set()) | numbers
    return named


def _with_gpu(slot: Slot, number: int) -> Slot:
    return slot if slot.gpus is not None else slot._replace(gpus=(str(number),))
