"""A slot map gives nodes their slots, and every wrong value is told with its line and column."""

from __future__ import annotations

from typing import Any

import pytest

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import Allocation, HostDefaults, Slot, allocate, this_machine
from mpilaunch.hosts.hostfile import HostEntry, parse_host_list
from mpilaunch.hosts.slot_map import Positions, apply_slot_map, hosts


def of_hosts(text: str) -> Allocation:
    return allocate(parse_host_list(text), "--host", HostDefaults())


def placed(data: object) -> Positions:
    """Return positions in which each key and item stands on a line of its own, indented by its depth."""
    positions: dict[tuple[Any, ...], tuple[int, int]] = {}

    def walk(value: object, path: tuple[Any, ...]) -> None:
        children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, child in children:
            positions[path + (key,)] = (len(positions) + 1, len(path) * 2 + 1)
            walk(child, path + (key,))

    walk(data, ())
    return positions


def applied(allocation: Allocation, data: object) -> dict[str, tuple[Slot, ...]]:
    result = apply_slot_map(allocation, data, "slots.yaml", placed(data))
    assert not result.elastic_slots
    return {node.name: node.slots for node in result.nodes}


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({"slots": 3}, (Slot(), Slot(), Slot())),
        ({"slots": 2, "gpus": "0-3"}, (Slot(("0", "1")), Slot(("2", "3")))),
        ({"gpus": [0, 1]}, (Slot(("0",)), Slot(("1",)))),
        ({"slots": 2, "cpus": "0-3"}, (Slot(cpus=(0, 1)), Slot(cpus=(2, 3)))),
        ({"slots": 1, "gpus": 3}, (Slot(("3",)),)),
        ({"slots": 1, "gpus": []}, (Slot(()),)),
        ({"slots": 1, "gpus": "none"}, (Slot(()),)),
        ({"slots": 1, "gpus": ["GPU-a1", "GPU-b2"]}, (Slot(("GPU-a1", "GPU-b2")),)),
        ({"slots": 1, "cpus": ["0-1", 8]}, (Slot(cpus=(0, 1, 8)),)),
        ({"slots": []}, ()),
        (
            {"slots": [{"gpus": [0], "cpus": "0-1", "rank": 1}, {"gpus": 1}, {}]},
            (Slot(("0",), (0, 1), 1), Slot(("1",)), Slot()),
        ),
    ],
)
def test_slots_of_a_node(settings: dict[str, Any], slots: tuple[Slot, ...]) -> None:
    assert applied(of_hosts("a:2,b:1"), {"nodes": {"a": settings}}) == {"a": slots, "b": (Slot(),)}


def test_a_node_set_and_numbers_as_names() -> None:
    data = {"nodes": {"n[1-2],m": {"slots": 2}, 7: {"slots": 0}}}
    assert {name: len(slots) for name, slots in applied(of_hosts("n1,n2,m,7"), data).items()} == {
        "n1": 2,
        "n2": 2,
        "m": 2,
        "7": 0,
    }


def test_an_ipv6_address_is_a_name() -> None:
    assert len(applied(of_hosts("fe80::1"), {"nodes": {"fe80::1": {"slots": 2}}})["fe80::1"]) == 2


def test_max_slots_and_elastic_slots() -> None:
    data = {"nodes": {"localhost": {"slots": 2, "max_slots": 4}}}
    result = apply_slot_map(this_machine(8), data, "slots.yaml", {})
    assert (result.nodes[0].max_slots, len(result.nodes[0].slots), result.elastic_slots) == (4, 2, False)


def test_the_slots_of_a_map_are_bounded() -> None:
    with pytest.raises(UsageError, match="more than the 1,048,576 slots allowed"):
        applied(of_hosts("n[1-20]"), {"nodes": {"n[1-20]": {"slots": 65_536}}})


def test_hosts_of_a_slot_map() -> None:
    data = {"nodes": {"b": {"slots": 2, "max_slots": 3}, "a[1-2]": {"gpus": "0-3"}, "c": {"slots": [{}, {}]}, "d": {}}}
    entries = hosts(data, "slots.yaml", placed(data))
    assert entries == [
        HostEntry("b", 2, 3, origin="slots.yaml:2"),
        HostEntry("a1", 4, origin="slots.yaml:5"),
        HostEntry("a2", 4, origin="slots.yaml:5"),
        HostEntry("c", 2, origin="slots.yaml:7"),
        HostEntry("d", origin="slots.yaml:11"),
    ]
    allocation = allocate(entries, "slots.yaml", HostDefaults())
    assert applied(allocation, data)["a2"] == (Slot(("0",)), Slot(("1",)), Slot(("2",)), Slot(("3",)))


REFUSED: list[tuple[object, str, str | None]] = [
    # data, message behind the source, part of the hint
    ([], ":1:1: '[]' stands where keys belong", "write keys here: nodes"),
    (None, ":1:1: nothing stands where keys belong", "nodes"),
    ({}, ":1:1: the key 'nodes' is missing", "nodes:"),
    ({"node": {}}, ":1:1: unknown key 'node'", "did you mean 'nodes'?"),
    ({"nodes": {}}, ":1:1: no nodes in this slot map", "at least one node"),
    ({"nodes": ["a"]}, ":1:1: '['a']' stands where keys belong", "node names"),
    ({"nodes": {"a": 2}}, ":2:3: '2' stands where keys belong", "slots and gpus and cpus and max_slots"),
    ({"nodes": {"a": {"slot": 2}}}, ":3:5: unknown key 'slot'", "did you mean 'slots'?"),
    ({"nodes": {"a": {"colour": 2}}}, ":3:5: unknown key 'colour'", "the keys are slots, gpus, cpus, max_slots"),
    ({"nodes": {"a": {"slots": "two"}}}, ":3:5: 'two' is not a whole number of 0 or more", "a list"),
    ({"nodes": {"a": {"slots": True}}}, ":3:5: 'True' is not a whole number of 0 or more", "a list"),
    ({"nodes": {"a": {"slots": -1}}}, ":3:5: '-1' is not a whole number of 0 or more", "a list"),
    ({"nodes": {"a": {"slots": 10**9}}}, ":3:5: 1000000000 is more than the 65,536 allowed", "a list"),
    ({"nodes": {"a": {"max_slots": 0}}}, ":3:5: '0' is not a whole number of 1 or more", "1 or more"),
    ({"nodes": {"a": {"slots": 3, "max_slots": 2}}}, ":2:3: a has 3 slots, more than its max_slots=2", "fewer slots"),
    ({"nodes": {"a": {"gpus": None}}}, ":3:5: nothing is not a list like 0-3 or [0, 1]", "quotes"),
    ({"nodes": {"a": {"gpus": [0.5]}}}, ":3:5: '0.5' is not a list like 0-3 or [0, 1]", "quotes"),
    ({"nodes": {"a": {"gpus": "two"}}}, ":3:5: 'two' is not a GPU", "indices like 0-3"),
    ({"nodes": {"a": {"gpus": [1, 1]}}}, ":3:5: GPU 1 is named twice", "once"),
    ({"nodes": {"a": {"cpus": "3-1"}}}, ":3:5: the range '3-1' is reversed", "1-3"),
    ({"nodes": {"a": {"cpus": []}}}, ":3:5: a number is missing", "0-3,8"),
    ({"nodes": {"a": {"slots": 2, "gpus": "0-2"}}}, ":2:3: a: 3 GPUs cannot be divided equally", "slots=3"),
    ({"nodes": {"a": {"slots": 2, "cpus": "0"}}}, ":2:3: a: 1 CPU for 2 slots", "one CPU"),
    ({"nodes": {"a": {"slots": [{}], "gpus": "0"}}}, ":5:5: 'gpus' stands beside a list of slots", "its own"),
    ({"nodes": {"a": {"slots": [2]}}}, ":4:7: '2' stands where keys belong", "gpus and cpus and rank"),
    ({"nodes": {"a": {"slots": [{"ranks": 2}]}}}, ":5:9: unknown key 'ranks'", "did you mean 'rank'?"),
    ({"nodes": {"a": {"slots": [{"rank": -1}]}}}, ":5:9: '-1' is not a whole number of 0 or more", "a rank"),
    (
        {"nodes": {"a": {"slots": [{"rank": 3}, {"rank": 3}]}}},
        ":7:9: rank 3 is given twice, first at slots.yaml:5:9",
        "a rank of its own",
    ),
    (
        {"nodes": {"a": {"slots": [{"rank": 3}]}, "b": {"slots": [{"rank": 3}]}}},
        ":9:9: rank 3 is given twice, first at slots.yaml:5:9",
        "a rank of its own",
    ),
    ({"nodes": {"n[1-2]": {"slots": [{"rank": 3}]}}}, ":5:9: rank 3 is given twice, first at slots.yaml:5:9", "its own"),
    ({"nodes": {"a": {}, "z": {}}}, ":3:3: node 'z' is not in the allocation (--host)", "the nodes are a,b,n[1-2]"),
    ({"nodes": {"a": {}, "a,b": {}}}, ":3:3: node 'a' is named twice, first at slots.yaml:2:3", None),
    ({"nodes": {"n[1-": {}}}, ":2:4: '[' is never closed", "brackets"),
    ({"nodes": {"a:2": {}}}, ":2:3: 'a:2' has more than names", "slots: 2"),
    ({"nodes": {"-v": {}}}, ":2:3: '-v' is not a host name", "letter"),
    ({"nodes": {True: {}}}, ":2:3: 'True' is not a node name", "quotes"),
]


@pytest.mark.parametrize(("data", "message", "hint"), REFUSED, ids=[case[1] for case in REFUSED])
def test_refused(data: object, message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        applied(of_hosts("a:2,b,n[1-2]"), data)
    assert caught.value.message.startswith("slots.yaml" + message)
    assert hint is None or hint in (caught.value.hint or "")


def test_without_positions_an_error_still_names_the_source() -> None:
    with pytest.raises(UsageError, match=r"^slots.yaml:1:1: unknown key 'x'$"):
        apply_slot_map(of_hosts("a"), {"x": 1}, "slots.yaml", {})
