"""The slot map: the GPUs and CPUs of each slot of a node, and the rank that must take it.

Pure: `cli.config` reads the YAML into plain data with its positions. A slot map replaces the slots of the nodes that it names
and leaves the others alone; without other hosts, its nodes are the hosts of the job (`hosts`).

    nodes:
      node[01-04]: {slots: 2, gpus: 0-3}            # each slot gets an equal share
      node05:
        max_slots: 4
        slots:                                      # or slot by slot
          - {gpus: [0], cpus: 0-7, rank: 0}
          - {gpus: none, cpus: 8-15}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import MAX_SLOTS, Allocation, Node, Slot, divide
from mpilaunch.hosts.host_values import read_cpus, read_gpus
from mpilaunch.hosts.hostfile import HostEntry, read_hosts
from mpilaunch.hosts.nodeset import MAX_ITEMS, Span, fold
from mpilaunch.text import closest, plural

Path = tuple[Any, ...]
_Devices = tuple["tuple[str, ...] | None", "tuple[int, ...] | None"]
Positions = Mapping[Path, tuple[int, int]]
"""Line and column of each key of a mapping and item of a sequence, by its path: ("nodes", "node01", "slots", 0, "gpus")."""


def hosts(data: object, source: str, positions: Positions) -> list[HostEntry]:
    """Return the nodes of a slot map as host entries, in the order of the file; raises UsageError."""
    return [
        HostEntry(name, plan.slot_count(), plan.max_slots, origin=f"{source}:{plan.at.position()[0]}")
        for name, plan in _read(data, _Position(source, positions)).items()
    ]


def apply_slot_map(allocation: Allocation, data: object, source: str, positions: Positions) -> Allocation:
    """Return the allocation with the slots that the slot map gives its nodes; raises UsageError."""
    plans = _read(data, _Position(source, positions))
    known = {node.name for node in allocation.nodes}
    for name, plan in plans.items():
        if name not in known:
            message = f"node '{name}' is not in the allocation ({allocation.source})"
            raise plan.at.error(message, f"the nodes are {fold(node.name for node in allocation.nodes)}")
    nodes, total = [], 0
    for node in allocation.nodes:
        nodes.append(plans[node.name].apply(node) if node.name in plans else node)
        total += len(nodes[-1].slots)
        if total > MAX_SLOTS:
            raise _Position(source, positions).error(f"more than the {MAX_SLOTS:,} slots allowed", "give the nodes fewer slots")
    return allocation._replace(nodes=tuple(nodes), elastic_slots=False)


class _Position(NamedTuple):
    """The position of a value in the slot map: its path, from which line and column follow."""

    source: str
    positions: Positions
    path: Path = ()

    def at(self, key: object) -> _Position:
        """Return the position of the value under a key or index of this one."""
        return self._replace(path=(*self.path, key))

    def position(self) -> tuple[int, int]:
        """Return line and column of the innermost enclosing value whose position is known."""
        known = (self.path[:length] for length in range(len(self.path), -1, -1))
        return next((self.positions[path] for path in known if path in self.positions), (1, 1))

    def where(self) -> str:
        """Return source:line:column."""
        line, column = self.position()
        return f"{self.source}:{line}:{column}"

    def span(self, text: str) -> Span:
        """Return `text` as a span at this position, for the readers of hostfile values."""
        line, column = self.position()
        return Span.of(text, self.source, line, column)

    def error(self, message: str, hint: str | None = None) -> UsageError:
        return UsageError("slot-map", f"{self.where()}: {message}", hint=hint)


class _Plan(NamedTuple):
    """The settings of one node; `slots` is a list of slots, their number, or None; `devices` are GPUs and CPUs."""

    at: _Position
    slots: tuple[Slot, ...] | int | None
    devices: _Devices
    max_slots: int | None

    def slot_count(self) -> int | None:
        """Return the number of slots, None if it is not given."""
        if self.slots is None:
            return len(self.devices[0] or ()) or None
        return self.slots if isinstance(self.slots, int) else len(self.slots)

    def apply(self, node: Node) -> Node:
        """Return the node with these slots; without a count here, the node keeps its own."""
        if isinstance(self.slots, tuple):
            slots = self.slots
        else:
            count = len(node.slots) if self.slots is None else self.slots
            slots = divide(count, *self.devices, f"{self.at.where()}: {node.name}")
        max_slots = node.max_slots if self.max_slots is None else self.max_slots
        if max_slots is not None and len(slots) > max_slots:
            message = f"{node.name} has {plural(len(slots), 'slot')}, more than its max_slots={max_slots}"
            raise self.at.error(message, "give the node fewer slots or a higher max_slots")
        return node._replace(slots=slots, max_slots=max_slots)


def _read(data: object, at: _Position) -> dict[str, _Plan]:
    """Return the settings of each node by name, in the order of the file."""
    top = _mapping(data, at, ("nodes",))
    if "nodes" not in top:
        raise at.error("the key 'nodes' is missing", "a slot map is 'nodes:' and below it each node with its slots")
    plans: dict[str, _Plan] = {}
    ranks: dict[int, _Position] = {}
    nodes_at = at.at("nodes")
    for key, settings in _mapping(top["nodes"], nodes_at, None).items():
        node_at = nodes_at.at(key)
        for fields in read_hosts(node_at.span(_text(key, node_at, "a node name"))):
            name = fields["name"]
            if len(fields) > 1:
                raise node_at.error(f"'{key}' has more than names", "slots go under the name, as slots: 2")
            if name in plans:
                raise node_at.error(f"node '{name}' is named twice, first at {plans[name].at.where()}")
            plans[name] = _read_plan(settings, node_at, ranks)
    if not plans:
        raise nodes_at.error("no nodes in this slot map", "name at least one node under 'nodes:'")
    return plans


def _read_plan(data: object, at: _Position, ranks: dict[int, _Position]) -> _Plan:
    """Return one node's settings; `ranks` collects the fixed ranks and their positions."""
    settings = _mapping(data, at, ("slots", "gpus", "cpus", "max_slots"))
    devices = _devices(settings, at)
    slots: tuple[Slot, ...] | int | None = None
    if isinstance(settings.get("slots"), list):
        for key in ("gpus", "cpus"):
            if key in settings:
                raise at.at(key).error(f"'{key}' stands beside a list of slots", "give each slot of the list its own")
        slots = tuple(_read_slot(slot, at.at("slots").at(index), ranks) for index, slot in enumerate(settings["slots"]))
    elif "slots" in settings:
        slots = _whole(settings["slots"], at.at("slots"), 0, "slots is a number, or a list with an item for each slot")
    max_slots = None
    if "max_slots" in settings:
        max_slots = _whole(settings["max_slots"], at.at("max_slots"), 1, "max_slots is a number, 1 or more")
    return _Plan(at, slots, devices, max_slots)


def _read_slot(data: object, at: _Position, ranks: dict[int, _Position]) -> Slot:
    settings = _mapping(data, at, ("gpus", "cpus", "rank"))
    devices = _devices(settings, at)
    if "rank" not in settings:
        return Slot(*devices)
    rank_at = at.at("rank")
    rank = _whole(settings["rank"], rank_at, 0, "a rank is a number, 0 or more")
    if rank in ranks:
        message = f"rank {rank} is given twice, first at {ranks[rank].where()}"
        raise rank_at.error(message, "give each slot a rank of its own")
    ranks[rank] = rank_at
    return Slot(*devices, rank)


def _devices(settings: Mapping[Any, Any], at: _Position) -> _Devices:
    gpus = _list(settings["gpus"], at.at("gpus"), read_gpus) if "gpus" in settings else None
    cpus = _list(settings["cpus"], at.at("cpus"), read_cpus) if "cpus" in settings else None
    return gpus, cpus


def _list(value: object, at: _Position, read: Callable[[Span], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the items of `[0, 1]`, `0` or `0-1`, read as a value of a hostfile."""
    items = value if isinstance(value, list) else [value]
    if not items and read is read_gpus:
        return ()
    text = ",".join(_text(item, at, "a list like 0-3 or [0, 1]") for item in items)
    return read(at.span(text))


def _mapping(data: object, at: _Position, known: Collection[str] | None) -> Mapping[Any, Any]:
    """Return data as a mapping, whose keys must be among `known`, or any if that is None."""
    if not isinstance(data, Mapping):
        keys = " and ".join(known) if known is not None else "node names"
        raise at.error(f"{_shown(data)} stands where keys belong", f"write keys here: {keys}")
    for key in data:
        if known is not None and key not in known:
            guess = closest(str(key), known)
            hint = f"did you mean '{guess}'?" if guess else "the keys are " + ", ".join(known)
            raise at.at(key).error(f"unknown key '{key}'", hint)
    return data


def _text(value: object, at: _Position, expected: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise at.error(f"{_shown(value)} is not {expected}", "put it in quotes if it is meant as text")
    return str(value)


def _whole(value: object, at: _Position, least: int, hint: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise at.error(f"{_shown(value)} is not a whole number of {least} or more", hint)
    if value > MAX_ITEMS:
        raise at.error(f"{value} is more than the {MAX_ITEMS:,} allowed", hint)
    return value


def _shown(value: object) -> str:
    return "nothing" if value is None else f"'{value}'"
