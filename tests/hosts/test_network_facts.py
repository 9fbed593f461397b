"""The network of a node, from the message of its daemon."""

from __future__ import annotations

from typing import Any

import pytest

from mpilaunch.hosts.network_facts import MOST, Interface, NetworkFacts, Port
from tests.support.facts import interface

NOTHING: dict[str, Any] = {"interfaces": [], "name_at": [], "ports": [], "settings": [], "gpu_paths": {}}
ETH0 = ["eth0", "physical", True, 1000, 1500, True, ["10.0.0.5/24", "fd00::5/64"]]


def test_all_of_a_message() -> None:
    ports = [["mlx5_0:1", "InfiniBand", True, 200, 1, "p"]]
    message = {**NOTHING, "interfaces": [ETH0], "name_at": ["127.0.1.1"], "ports": ports}
    message |= {"settings": ["NCCL_NET"], "gpu_paths": {"b": "p"}}
    eth0 = Interface("eth0", "physical", True, 1000, 1500, True, ("10.0.0.5/24", "fd00::5/64"))
    port = Port("mlx5_0:1", "InfiniBand", True, 200, 1, "p")
    expected = NetworkFacts((eth0,), ("127.0.1.1",), (port,), ("NCCL_NET",), {"b": "p"})
    assert NetworkFacts.from_message(message) == expected


def test_of_a_node_that_tells_much_the_first_are_taken() -> None:
    many = [*ETH0[:-1], ["10.0.0.5/24"] * 1000]
    facts = NetworkFacts.from_message({**NOTHING, "interfaces": [many] * 1000, "name_at": ["x"] * 1000})
    assert len(facts.interfaces) == len(facts.interfaces[0].addresses) == len(facts.name_at) == MOST


@pytest.mark.parametrize("rows", [[["eth0"]], [[*ETH0, 1]], [[*ETH0[:-1], 7]]])
def test_rows_that_do_not_fit_are_errors(rows: list[Any]) -> None:
    with pytest.raises(TypeError):
        NetworkFacts.from_message({**NOTHING, "interfaces": rows})


def test_the_default_routes_addresses_come_first_and_ipv4_before_ipv6() -> None:
    facts = NetworkFacts(
        (
            interface("docker0", "172.17.0.1/16"),
            interface("dummy0", "10.128.0.5/32"),
            interface("eth0", "192.168.1.9/23", "fd00::2/64", default=True),
            interface("eth1", "fd00::3/64", "192.168.1.9/24"),
        )
    )
    assert facts.addresses == ("192.168.1.9", "10.128.0.5", "172.17.0.1", "fd00::2", "fd00::3")
