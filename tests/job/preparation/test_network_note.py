"""What the user reads of the network of a job."""

from __future__ import annotations

import pytest

from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.environment.network_variables import Choices, network_choices
from mpilaunch.job.preparation.network_note import network_note, speed_text
from mpilaunch.placement.network import choose_network
from tests.support.facts import interface, node_facts

DOCKER = interface("docker0", "172.17.0.1/16")


def note(*nodes: NodeFacts, wanted: str = "auto") -> str:
    facts = dict(enumerate(nodes))
    names = {index: one.hostname for index, one in facts.items()}
    network = choose_network(facts, {}, wanted, names)
    choices = network_choices(network, facts) if network else Choices()
    return network_note(wanted, network, choices, facts, names)


def test_a_network_that_libraries_would_miss() -> None:
    def node(name: str, number: int, interface_name: str) -> NodeFacts:
        address = f"10.99.0.{number}"
        return node_facts(name, DOCKER, interface(interface_name, f"{address}/24", speed=100_000), name_at=(address,))

    assert note(node("a", 1, "fast0"), node("b", 2, "ens1")) == (
        "ranks use the network 10.99.0.0/24 (fast0, ens1, 100 Gb/s), where libraries would not all find it: "
        "set OMPI_MCA_btl_tcp_if_include, UCX_NET_DEVICES"
    )


def test_a_network_without_a_name_or_speed() -> None:
    nodes = [node_facts(name, DOCKER, interface("ens4", f"10.128.0.{name}/32", default=True)) for name in "12"]
    assert note(*nodes).startswith("ranks use the network ens4, where")


def test_nothing_is_reported_where_all_is_well_or_the_user_wants_none() -> None:
    clean = [node_facts(name, f"10.88.0.{name}/16", name_at=(f"10.88.0.{name}",)) for name in "12"]
    assert note(*clean) == ""
    same = [node_facts(name, "10.0.2.15/24") for name in "ab"]
    assert note(*same) != "" and note(*same, wanted="none") == ""
    assert note(node_facts("a"), node_facts("b")) == ""  # nodes that tell nothing


def test_nodes_that_share_nothing() -> None:
    assert note(*(node_facts(name, "10.0.2.15/24") for name in "ab")) == (
        "these nodes share no network, ranks may not reach each other: a has eth0 10.0.2.15/24; b has eth0 10.0.2.15/24"
    )
    many = [node_facts(f"n{number}", "10.0.2.15/24") for number in range(9)]
    assert note(*many).endswith("n5 has eth0 10.0.2.15/24; and 3 more nodes")


@pytest.mark.parametrize(("megabits", "text"), [(10, "10 Mb/s"), (1000, "1 Gb/s"), (2500, "2.5 Gb/s"), (400_000, "400 Gb/s")])
def test_speeds(megabits: int, text: str) -> None:
    assert speed_text(megabits) == text
