"""The facts of a node, from the message of its daemon."""

from __future__ import annotations

from typing import Any

import pytest

from mpilaunch.hosts.node_facts import MAX_CPU, Cpu, Gpu, NodeFacts, cpus_from_message

GPU = {"vendor": "nvidia", "index": 1, "uuid": "GPU-a", "bus_id": "0000:3b:00.0", "name": "H100", "numa": 0, "newer": "x"}
MESSAGE: dict[str, Any] = {
    "hostname": "node01", "python": "3.11.7", "executable": "/usr/bin/python3", "cpus": [[0, 0, 0, 0], [1, 1, 0, 0]],
    "gpus": [GPU],
    "network": {
        "interfaces": [["eth0", "physical", True, 1000, 1500, True, ["10.0.0.1/24"]]],
        "name_at": [], "ports": [], "settings": [], "gpu_paths": {},
    },
    "ssh_connection": ["10.0.0.9", 50000, "10.0.0.1", 22], "free_port": 20000,
}  # fmt: skip


def test_all_of_a_message() -> None:
    facts = NodeFacts.from_message({**MESSAGE, "caches": {"1": "core", "3": "socket"}, "notes": ["slow", 7]})
    assert facts.cpus == (Cpu(0, 0, 0, 0, 0, -1, 0), Cpu(1, 1, 0, 0, 1, -1, 0))
    assert facts.gpus == (Gpu("nvidia", 1, "GPU-a", "0000:3b:00.0", "H100", 0),)
    assert facts.ssh_connection == ("10.0.0.9", "50000", "10.0.0.1", "22") and facts.notes == ("slow", "7")


def test_what_a_node_may_leave_out() -> None:
    facts = NodeFacts.from_message({**MESSAGE, "ssh_connection": None, "gpus": []})
    assert (facts.ssh_connection, facts.notes, facts.cpus[0].l3) == (None, (), -1)


def test_caches_that_are_listed() -> None:
    rows = [[number, number // 2, 0, 0] for number in range(6)]
    cpus = cpus_from_message(rows, {"2": ["0-1", "2,4-5"]})
    assert [cpu.l2 for cpu in cpus] == [0, 0, 1, -1, 1, 1]


@pytest.mark.parametrize("caches", [[f"0-{MAX_CPU + 1}"], [f"{10**30}"], ["0-65535", "0-65535"], ["x"], ["1-"[::-1]]])
def test_hostile_lists_of_caches_are_refused(caches: list[str]) -> None:
    with pytest.raises(ValueError, match=r"CPU|invalid literal"):
        cpus_from_message([[0, 0, 0, 0]], {"1": caches})


@pytest.mark.parametrize(
    "wrong", [{"ssh_connection": ["a", 1]}, {"gpus": [{"vendor": "nvidia"}]}, {"cpus": [["x"]]}, {"cpus": [[0] * 9]}]
)
def test_a_message_that_does_not_fit_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        NodeFacts.from_message({**MESSAGE, **wrong})
