"""Filters of slots: which slots and GPUs remain, and what is refused."""

from __future__ import annotations

import pytest

from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import Allocation, HostDefaults, allocate
from mpilaunch.hosts.hostfile import parse_hostfile
from mpilaunch.hosts.slot_filter import filter_slots


def hosts(text: str = "a slots=4\nb slots=2 gpus=4-7\nfe80::1 slots=1\n") -> Allocation:
    return allocate(parse_hostfile(text, "hosts"), "hosts", HostDefaults())


@pytest.mark.parametrize(
    ("flag", "text", "left"),
    [
        ("--include", "a:0,2", {"a": [("0",), ("2",)]}),
        ("--include", "a:3@a:1-2", {"a": [("1",), ("2",), ("3",)]}),
        ("--include", "b@a:1", {"a": [("1",)], "b": [("4", "5"), ("6", "7")]}),
        ("--include", "a@a:1", {"a": [("1",)]}),
        ("--include", "b:1@fe80::1", {"b": [("6", "7")], "fe80::1": [("0",)]}),
        ("--exclude", "a@fe80::1:0", {"b": [("4", "5"), ("6", "7")]}),
        ("--exclude", "a:0,1,2@b:0@fe80::1", {"a": [("3",)], "b": [("6", "7")]}),
    ],
)
def test_the_named_slots_remain_in_order_with_their_gpus(flag: str, text: str, left: dict[str, list[tuple[str, ...]]]) -> None:
    filtered = filter_slots(hosts(), text, flag)
    assert {node.name: [slot.gpus for slot in node.slots] for node in filtered.nodes} == left
    assert [node.index for node in filtered.nodes] == list(range(len(left)))


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("--include", "c:0", "--include: 'c' is not in hosts"),
        ("--exclude", "a:0@", "--exclude: '' is not in hosts"),
        ("--include", "a:4", "--include: a has no slot 4, it has 4 (hosts:1)"),
        ("--include", "a:x", "x"),
        ("--include", "a:", "--include"),
        ("--exclude", "a@b@fe80::1", "--exclude a@b@fe80::1 leaves no slot"),
    ],
)
def test_what_a_filter_cannot_mean_is_an_error(flag: str, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        filter_slots(hosts(), text, flag)
    assert message in str(caught.value)
