"""Machines that are made up have the CPUs that hwloc makes of the same words."""

from __future__ import annotations

import pytest

from mpilaunch.errors import UsageError
from mpilaunch.hosts.node_facts import Cpu
from mpilaunch.placement.synthetic import cpus_of


def test_parts_are_numbered_over_the_whole_machine() -> None:
    assert cpus_of("pack:2 [numa] l3:1 core:1 pu:2") == (
        Cpu(0, 0, 0, 0, l3=0),
        Cpu(1, 0, 0, 0, l3=0),
        Cpu(2, 1, 1, 1, l3=1),
        Cpu(3, 1, 1, 1, l3=1),
    )


def test_other_names_and_what_is_left_out() -> None:
    assert cpus_of("Package:2 NUMANode:2 L2Cache:1 core:1") == cpus_of("socket:2 numa:2 l2:1 core:1 pu:1")
    assert cpus_of("core:2") == (Cpu(0, 0, 0, 0), Cpu(1, 1, 0, 0))


def test_cpu_numbers_may_be_given_in_logical_order() -> None:
    assert [cpu.core for cpu in cpus_of("core:2 pu:2(indexes=0,2,1,3)")] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        ("", "it has no core:N"),
        ("pack:2", "it has no core:N"),
        ("core:0", "'core:0' is no object and its number"),
        ("core", "'core' is no object and its number"),
        ("disk:2 core:2", "'disk:2' is no object and its number"),
        ("core:2 core:2", "'core:2' is there twice"),
        ("pack:99999 core:99999", "it has 9,999,800,001 CPUs, more than the 16,384 allowed"),
        ("core:2 pu:1(indexes=0,5)", "its indexes are not the numbers from 0 to 1"),
        ("core:2 pu:1(indexes=,)" + "(" * 99_999, "is no object and its number"),
    ],
)
def test_what_is_no_machine(description: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        cpus_of(description)
    assert caught.value.reference == "topology" and reason in caught.value.message
