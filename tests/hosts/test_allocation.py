"""Mentions of hosts become nodes: merging, agents, GPUs and CPUs of slots, and the filter of --host."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import (
    MAX_SLOTS,
    Allocation,
    HostDefaults,
    Node,
    Slot,
    allocate,
    filter_by_host_list,
    from_sources,
    merge_slots,
    this_machine,
)
from mpilaunch.hosts.hostfile import HostEntry, parse_host_list, parse_hostfile

LOCAL_NAMES = ("localhost", "127.0.0.1", "head")


def of_file(text: str, **options: Any) -> Allocation:
    defaults = HostDefaults(**{"local_names": LOCAL_NAMES, **options})
    return allocate(parse_hostfile(text, "hosts.txt"), "hosts.txt", defaults)


def slots_of(allocation: Allocation) -> list[tuple[str, int]]:
    return [(node.name, len(node.slots)) for node in allocation.nodes]


def refusal(text: str, **options: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        of_file(text, **options)
    return caught.value


@pytest.mark.parametrize(
    ("text", "options", "by_cores"),
    [
        ("a:*\nb\n[fe80::1]:*", {}, ["a", "fe80::1"]),
        ("a:*\nb\nc:2\nd slots=1\ne gpus=0,1\nf cpus=0-3\ng\ng", {"by_cores": True}, ["a", "b"]),
        ("a:*\nb", {"by_cores": True, "per_node": 2}, ["a"]),
        ("a:* gpus=0-3\nb max_slots=2", {"by_cores": True}, ["b"]),
    ],
)
def test_hosts_whose_slots_are_their_cores(text: str, options: dict[str, Any], by_cores: list[str]) -> None:
    assert [node.name for node in of_file(text, **options).nodes if node.by_cores] == by_cores


def test_hosts_of_a_list_have_one_slot_each_unless_they_say_so() -> None:
    defaults = HostDefaults(by_cores=True)
    allocation = from_sources([], parse_host_list("a,b:*", "--host"), None, defaults, local_slots=1)
    assert [(node.name, node.by_cores) for node in allocation.nodes] == [("a", False), ("b", True)]


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("a", [("a", 1)]),
        ("a\nb\na\na", [("a", 3), ("b", 1)]),
        ("a slots=2\nb\na slots=3", [("a", 5), ("b", 1)]),
        ("a slots=2\na", [("a", 3)]),
        ("a slots=0\nb", [("a", 0), ("b", 1)]),
        ("local:2\nlocal:3\nlocal", [("local", 2), ("local", 3), ("local", 1)]),
        ("a gpus=0-3", [("a", 4)]),
        ("a gpus=none", [("a", 1)]),
        ("a max_slots=4", [("a", 1)]),
        ("a:*\n[fe80::1]:*\nb", [("a", 1), ("fe80::1", 1), ("b", 1)]),
    ],
)
def test_mentions_become_nodes(text: str, slots: list[tuple[str, int]]) -> None:
    allocation = of_file(text)
    assert slots_of(allocation) == slots
    assert [node.index for node in allocation.nodes] == list(range(len(slots)))


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("a\nb:2", [("a", 4), ("b", 2)]),
        ("a\na", [("a", 2)]),
        ("local\nlocal", [("local", 4), ("local", 4)]),
        ("a gpus=0-1", [("a", 2)]),
        ("a gpus=none", [("a", 4)]),
        ("a gpus=0-7 slots=8", [("a", 8)]),
    ],
)
def test_per_node_is_the_slots_of_a_host_about_which_nothing_was_said(text: str, slots: list[tuple[str, int]]) -> None:
    assert slots_of(of_file(text, per_node=4)) == slots


def test_a_node_has_all_that_was_said() -> None:
    assert of_file("\nbob@a slots=1 max_slots=3 port=22 agent=openssh gpus=0 cpus=0-1\na").nodes == (
        Node(0, "a", (Slot(("0",), (0, 1)), Slot()), "openssh", 3, "bob", 22, "hosts.txt:2"),
    )


@pytest.mark.parametrize(
    ("text", "agent", "used"),
    [
        ("a", None, "ssh"),
        ("a", "tsh ssh {host}", "tsh ssh {host}"),
        ("a agent=openssh", "fake", "openssh"),
        ("a\na agent=openssh", None, "openssh"),
        ("local", None, "local"),
        ("local", "fake", "fake"),
        ("local agent=ssh", None, "ssh"),
        ("localhost", None, "local"),
        ("head", None, "local"),
        ("127.0.0.1", "fake", "fake"),
        ("head.example", None, "ssh"),
        ("bob@localhost", None, "ssh"),
        ("localhost port=2222", None, "ssh"),
    ],
)
def test_agent(text: str, agent: str | None, used: str) -> None:
    assert of_file(text, agent=agent).nodes[0].agent == used


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bob@a\neve@a", "a is named with user 'bob' and with 'eve'"),
        ("a port=22\nb\na\na port=23", "a is named with port '22' and with '23'"),
        ("a agent=ssh\na agent=fake", "a is named with agent 'ssh' and with 'fake'"),
    ],
)
def test_mentions_that_disagree(text: str, message: str) -> None:
    error = refusal(text)
    assert (error.reference, error.message) == ("host-conflict", message)
    last = len(text.splitlines())
    assert error.context == ("hosts.txt:1: a", f"hosts.txt:{last}: a")


def test_local_nodes_never_disagree() -> None:
    allocation = of_file("local agent=fake\nlocal agent=ssh")
    assert [node.agent for node in allocation.nodes] == ["fake", "ssh"]


def test_the_lowest_max_slots_holds() -> None:
    assert of_file("a slots=1 max_slots=8\na slots=1 max_slots=4").nodes[0].max_slots == 4
    error = refusal("a slots=4 max_slots=4\na slots=1")
    assert (error.reference, error.message) == ("host-slots", "a has 5 slots, more than its max_slots=4")
    assert error.context == ("hosts.txt:1: a", "hosts.txt:2: a")


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("a slots=2 gpus=0-3", [Slot(gpus=("0", "1")), Slot(gpus=("2", "3"))]),
        ("a gpus=3,0", [Slot(gpus=("3",)), Slot(gpus=("0",))]),
        ("a slots=2 gpus=none", [Slot(gpus=()), Slot(gpus=())]),
        ("a slots=1 gpus=GPU-a1,GPU-b2", [Slot(gpus=("GPU-a1", "GPU-b2"))]),
        ("a slots=2 cpus=0-3", [Slot(cpus=(0, 1)), Slot(cpus=(2, 3))]),
        ("a slots=3 cpus=0-7", [Slot(cpus=(0, 1, 2)), Slot(cpus=(3, 4, 5)), Slot(cpus=(6, 7))]),
        ("a slots=0 gpus=0 cpus=0", []),
        ("a gpus=0-1 cpus=0-3\na", [Slot(("0",), (0, 1)), Slot(("1",), (2, 3)), Slot()]),
    ],
)
def test_slots_share_gpus_and_cpus(text: str, slots: list[Slot]) -> None:
    assert list(of_file(text).nodes[0].slots) == slots


@pytest.mark.parametrize(
    ("text", "reference", "message", "hint"),
    [
        ("a slots=2 gpus=0-2", "host-gpus", "hosts.txt:1: a: 3 GPUs cannot be divided equally among 2 slots", "slots=3"),
        ("a slots=4 gpus=0-1", "host-gpus", "hosts.txt:1: a: 2 GPUs cannot be divided equally among 4 slots", "slots=2"),
        ("a slots=3 cpus=0-1", "host-cpus", "hosts.txt:1: a: 2 CPUs for 3 slots", "at least one CPU"),
    ],
)
def test_gpus_and_cpus_that_do_not_divide(text: str, reference: str, message: str, hint: str) -> None:
    error = refusal(text)
    assert (error.reference, error.message) == (reference, message)
    assert hint in (error.hint or "")


@given(st.integers(1, 12), st.integers(0, 40))
def test_division_keeps_every_cpu_in_order_and_is_even(slots: int, more: int) -> None:
    cpus = tuple(range(slots + more))
    node = allocate([HostEntry("a", slots=slots, cpus=cpus)], "", HostDefaults()).nodes[0]
    shares = [slot.cpus or () for slot in node.slots]
    assert sum(shares, ()) == cpus
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_typing_error_does_not_fill_the_memory() -> None:
    assert refusal("n[1-60000]:60000").message == f"hosts.txt asks for more than the {MAX_SLOTS:,} slots allowed"
    assert refusal("a", per_node=MAX_SLOTS + 1).reference == "host-slots"


def filtered(text: str, host_list: str) -> Allocation:
    return filter_by_host_list(of_file(text), parse_host_list(host_list))


@pytest.mark.parametrize(
    ("host_list", "slots"),
    [
        ("b", [("b", 4)]),
        ("b:2", [("b", 2)]),
        ("b,b", [("b", 2)]),
        ("b:2,b", [("b", 3)]),
        ("c,a", [("a", 2), ("c", 4)]),
        ("a,b,c", [("a", 2), ("b", 4), ("c", 4)]),
        ("b:0,c", [("b", 0), ("c", 4)]),
    ],
)
def test_host_list_filters_a_hostfile(host_list: str, slots: list[tuple[str, int]]) -> None:
    allocation = filtered("a slots=2\nb slots=4 gpus=0-3\nc slots=4", host_list)
    assert slots_of(allocation) == slots
    assert [node.index for node in allocation.nodes] == list(range(len(slots)))


def test_the_filter_keeps_slots_and_takes_the_user() -> None:
    allocation = filtered("bob@a slots=2 gpus=0-1\nbob@b", "eve@a:1,b")
    assert allocation.nodes == (
        Node(0, "a", (Slot(gpus=("0",)),), "ssh", user="eve", origin="hosts.txt:1"),
        Node(1, "b", (Slot(),), "ssh", user="bob", origin="hosts.txt:2"),
    )


def test_the_filter_refuses_a_host_that_the_hostfile_lacks() -> None:
    with pytest.raises(UsageError) as caught:
        filtered("n[01-16]", "n01,m[1-2]")
    error = caught.value
    assert (error.reference, error.message) == ("host-unknown", "m[1-2] of --host is not in hosts.txt")
    assert error.context == ("hosts.txt has n[01-16]",)


def test_the_filter_does_not_raise_slots() -> None:
    with pytest.raises(UsageError) as caught:
        filtered("a slots=2", "a:3")
    assert caught.value.message == "--host asks for 3 slots on a, which has 2 (hosts.txt:1)"
    assert "--oversubscribe" in (caught.value.hint or "")


def test_this_machine() -> None:
    assert this_machine(2) == Allocation(
        (Node(0, "localhost", (Slot(), Slot()), "local", origin="this machine"),), "this machine", elastic_slots=True
    )


@pytest.mark.parametrize(
    ("hostfile", "host_list", "found", "source", "slots"),
    [
        ("a:2\nb", "", None, "hosts.txt", [("a", 2), ("b", 1)]),
        ("a:2\nb", "a:1", ("c", "Slurm job 1"), "hosts.txt", [("a", 1)]),
        ("", "a:2", None, "--host", [("a", 2)]),
        ("", "", ("c:3", "Slurm job 1"), "Slurm job 1", [("c", 3)]),
        ("", "", None, "this machine", [("localhost", 8)]),
    ],
)
def test_from_sources(
    hostfile: str, host_list: str, found: tuple[str, str] | None, source: str, slots: list[tuple[str, int]]
) -> None:
    allocation = from_sources(
        parse_hostfile(hostfile, "hosts.txt") if hostfile else [],
        parse_host_list(host_list) if host_list else [],
        None if found is None else (parse_host_list(found[0], found[1]), found[1]),
        HostDefaults(local_names=LOCAL_NAMES),
        hostfile_source="hosts.txt",
        local_slots=8,
    )
    assert (allocation.source, slots_of(allocation)) == (source, slots)


def test_from_sources_uses_the_agent_here_too() -> None:
    allocation = from_sources([], [], None, HostDefaults("fake"), local_slots=1)
    assert allocation.nodes[0].agent == "fake"


def test_merged_slots_have_all_that_they_name() -> None:
    named = (Slot(("0", "1"), (0, 1)), Slot(("1", "2")), Slot())
    nodes = (Node(0, "a", named, "ssh"), Node(1, "b", (Slot(), Slot()), "ssh"), Node(2, "c", (), "ssh"))
    merged = merge_slots(Allocation(nodes, "--host"))
    assert [node.slots for node in merged.nodes] == [(Slot(("0", "1", "2"), (0, 1)),), (Slot(),), ()]
