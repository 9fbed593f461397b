"""Where other machines reach a node."""

from __future__ import annotations

import pytest

from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.environment.node_addresses import address_of, reached_addresses
from tests.support.facts import node_facts


def facts(*addresses: str, seen_from: str = "", seen_at: str = "") -> NodeFacts:
    return node_facts("its-own-name", *(f"{address}/24" for address in addresses), seen_from=seen_from, seen_at=seen_at)


OTHER = facts("10.0.0.2", seen_from="10.0.0.9")
NODE = {
    "where ssh reached it": (facts("172.16.0.1", "10.0.0.1", seen_at="10.0.0.1"), "10.0.0.1"),
    "reached by IPv6": (facts("10.0.0.1", "2001:db8::1", seen_at="2001:db8::1"), "2001:db8::1"),
    "a mapped address is IPv4": (facts("172.16.0.1", seen_at="::ffff:10.0.0.1"), "10.0.0.1"),
    "reached by loopback": (facts("10.0.0.1", seen_at="127.0.0.1"), "10.0.0.1"),
    "reached by mapped loopback": (facts("10.0.0.1", seen_at="::ffff:127.0.0.1"), "10.0.0.1"),
    "reached by a link-local address": (facts("10.0.0.1", seen_at="fe80::1%eth0"), "10.0.0.1"),
    "a zone is stripped": (facts("10.0.0.1", seen_at="fd00::1%eth0"), "fd00::1"),
    "reached without ssh": (facts("10.0.0.1", "10.1.0.1"), "10.0.0.1"),
    "nothing known but the name": (facts(), "node-as-written"),
    "by ssh, which says nonsense": (facts("10.0.0.1", seen_at="somewhere"), "10.0.0.1"),
}
HEAD = {
    "where the others saw it": (facts("172.16.0.9", "10.0.0.9"), [OTHER], "10.0.0.9"),
    "where the others saw it, without addresses": (facts(), [OTHER], "10.0.0.9"),
    "behind a jump host": (facts("172.16.0.9"), [OTHER], "172.16.0.9"),
    "its own ssh session does not count": (
        facts("172.16.0.9", "10.0.0.9", seen_from="192.0.2.7", seen_at="172.16.0.9"),
        [OTHER],
        "10.0.0.9",
    ),
    "the first other tells nothing": (facts("172.16.0.9", "10.0.0.9"), [facts("10.0.0.3"), OTHER], "10.0.0.9"),
    "nothing known": (facts(), [facts("10.0.0.2")], "node-as-written"),
}


@pytest.mark.parametrize("case", NODE)
def test_a_node(case: str) -> None:
    one, expected = NODE[case]
    assert address_of(one, "", reached_addresses({0: OTHER, 1: one}, here=()).get(1, ""), "node-as-written") == expected


@pytest.mark.parametrize("case", HEAD)
def test_a_node_on_the_heads_machine(case: str) -> None:
    one, others, expected = HEAD[case]
    reached = reached_addresses(dict(enumerate([one, *others])), here={0})
    assert address_of(one, "", reached.get(0, ""), "node-as-written") == expected


def test_the_shared_network_precedes_all() -> None:
    assert address_of(facts("10.0.0.1"), "10.9.0.1", "10.0.0.1", "node-as-written") == "10.9.0.1"
