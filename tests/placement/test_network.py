"""The network that the ranks of a job use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.network_facts import Interface
from mpilaunch.job.environment.network_variables import network_choices
from mpilaunch.placement.network import ROUTED, Network, choose_network
from tests.support.facts import interface, node_facts

Machine = Sequence[Interface]
DOCKER = interface("docker0", "172.17.0.1/16")
LOOPBACK = interface("lo", "10.255.0.1/32")


def slow(number: int, **options: bool) -> Interface:
    return interface("eth0", f"10.88.0.{number}/16", speed=1000, **options)


def fast(number: int, name: str = "fast0", **options: bool) -> Interface:
    return interface(name, f"10.99.0.{number}/24", speed=100_000, **options)


def chosen(*machines: Machine, reached: Mapping[int, str] = {}) -> Network | None:
    return choose_network({index: node_facts(f"n{index}", *one) for index, one in enumerate(machines)}, reached)


CASES: dict[str, tuple[Sequence[Machine], Mapping[int, str], str, list[str]]] = {
    "one network": ([[slow(1)], [slow(2)]], {}, "10.88.0.0/16", ["eth0 10.88.0.1", "eth0 10.88.0.2"]),
    "the fastest": ([[slow(1), fast(1)], [fast(2), slow(2)]], {}, "10.99.0.0/24", ["fast0 10.99.0.1", "fast0 10.99.0.2"]),
    "names differ": ([[fast(1)], [fast(2, "ens1f0")]], {}, "10.99.0.0/24", ["fast0 10.99.0.1", "ens1f0 10.99.0.2"]),
    "the fast one is missing on a node": (
        [[slow(1), fast(1)], [slow(2), fast(2)], [slow(3)]],
        {},
        "10.88.0.0/16",
        ["eth0 10.88.0.1", "eth0 10.88.0.2", "eth0 10.88.0.3"],
    ),
    "the fast one has no cable on a node": (
        [[slow(1), fast(1)], [slow(2), fast(2, running=False)]],
        {},
        "10.88.0.0/16",
        ["eth0 10.88.0.1", "eth0 10.88.0.2"],
    ),
    "a fast one whose slowest end is slow": (
        [[slow(1), fast(1)], [slow(2), interface("fast0", "10.99.0.2/24", speed=100)]],
        {},
        "10.88.0.0/16",
        ["eth0 10.88.0.1", "eth0 10.88.0.2"],
    ),
    "bridges for containers have one address everywhere": (
        [[DOCKER, slow(1)], [DOCKER, slow(2)]],
        {},
        "10.88.0.0/16",
        ["eth0 10.88.0.1", "eth0 10.88.0.2"],
    ),
    "of one speed that by which the head came": (
        [
            [interface("a", "10.1.0.1/24"), interface("b", "10.2.0.1/24")],
            [interface("a", "10.1.0.2/24"), interface("b", "10.2.0.2/24")],
        ],
        {1: "10.2.0.2"},
        "10.2.0.0/24",
        ["b 10.2.0.1", "b 10.2.0.2"],
    ),
    "of one speed a real one before a tunnel, though the head came by that": (
        [
            [interface("wg0", "10.1.0.1/24")._replace(kind="wireguard"), interface("eth0", "10.9.0.1/24")],
            [interface("wg0", "10.1.0.2/24")._replace(kind="wireguard"), interface("eth0", "10.9.0.2/24")],
        ],
        {0: "10.1.0.1", 1: "10.1.0.2"},
        "10.9.0.0/24",
        ["eth0 10.9.0.1", "eth0 10.9.0.2"],
    ),
    "of one speed the first by address": (
        [
            [interface("b", "10.20.0.1/24"), interface("a", "10.3.0.1/24")],
            [interface("a", "10.3.0.2/24"), interface("b", "10.20.0.2/24")],
        ],
        {},
        "10.3.0.0/24",
        ["a 10.3.0.1", "a 10.3.0.2"],
    ),
    "a known speed before an unknown one": (
        [[interface("wlan0", "10.1.0.1/24"), slow(1)], [interface("wlan0", "10.1.0.2/24"), slow(2)]],
        {},
        "10.88.0.0/16",
        ["eth0 10.88.0.1", "eth0 10.88.0.2"],
    ),
    "two addresses in one network": (
        [[interface("eth0", "10.88.0.1/16", "10.88.1.1/16")], [slow(2)]],
        {0: "10.88.1.1"},
        "10.88.0.0/16",
        ["eth0 10.88.1.1", "eth0 10.88.0.2"],
    ),
    "a cable between two": (
        [
            [interface("p1", "192.168.7.1/30", speed=200_000), slow(1)],
            [slow(2), interface("p1", "192.168.7.2/30", speed=200_000)],
        ],
        {1: "10.88.0.2"},
        "192.168.7.0/30",
        ["p1 192.168.7.1", "p1 192.168.7.2"],
    ),
    "a cable of /31": (
        [[interface("p1", "192.168.7.0/31")], [interface("p1", "192.168.7.1/31")]],
        {},
        "192.168.7.0/31",
        ["p1 192.168.7.0", "p1 192.168.7.1"],
    ),
    "a ring of cables that no two ends share": (
        [
            [interface("p1", "192.168.1.1/30", speed=9), interface("p3", "192.168.3.2/30", speed=9), slow(1)],
            [interface("p1", "192.168.1.2/30", speed=9), interface("p2", "192.168.2.1/30", speed=9), slow(2)],
            [interface("p2", "192.168.2.2/30", speed=9), interface("p3", "192.168.3.1/30", speed=9), slow(3)],
        ],
        {},
        "10.88.0.0/16",
        ["eth0 10.88.0.1", "eth0 10.88.0.2", "eth0 10.88.0.3"],
    ),
    "IPv6 only": (
        [[interface("eth0", "fd00::1/64")], [interface("eth0", "fd00::2/64")]],
        {},
        "fd00::/64",
        ["eth0 fd00::1", "eth0 fd00::2"],
    ),
    "IPv4 before IPv6": (
        [[interface("eth0", "10.1.0.1/24", "fd00::1/64")], [interface("eth0", "10.1.0.2/24", "fd00::2/64")]],
        {},
        "10.1.0.0/24",
        ["eth0 10.1.0.1", "eth0 10.1.0.2"],
    ),
    "pods, each with an address alone": (
        [[interface("eth0", "10.244.1.7/32", default=True)], [interface("eth0", "10.244.2.9/32", default=True)]],
        {},
        ROUTED,
        ["eth0 10.244.1.7", "eth0 10.244.2.9"],
    ),
    "a cloud's machines with docker0": (
        [
            [DOCKER, interface("ens4", "10.128.0.5/32", default=True)],
            [DOCKER, interface("ens4", "10.128.0.6/32", default=True)],
        ],
        {1: "10.128.0.6"},
        ROUTED,
        ["ens4 10.128.0.5", "ens4 10.128.0.6"],
    ),
    "a network for each rack": (
        [[interface("eth0", "10.1.0.5/24", default=True)], [interface("eth0", "10.2.0.5/24", default=True)]],
        {},
        ROUTED,
        ["eth0 10.1.0.5", "eth0 10.2.0.5"],
    ),
    "reached by a tunnel, the default route leads elsewhere": (
        [
            [interface("eth0", "192.168.0.9/24", default=True), interface("tailscale0", "100.64.0.1/32")],
            [interface("eth0", "192.168.0.9/24", default=True), interface("tailscale0", "100.64.0.2/32")],
        ],
        {0: "100.64.0.1", 1: "100.64.0.2"},
        ROUTED,
        ["tailscale0 100.64.0.1", "tailscale0 100.64.0.2"],
    ),
    "addresses on the loopback interface are no network": (
        [[LOOPBACK, slow(1)], [LOOPBACK, slow(2)]],
        {},
        "10.88.0.0/16",
        ["eth0 10.88.0.1", "eth0 10.88.0.2"],
    ),
    "what is no address is passed over": (
        [[interface("x", "all/8", "", "10.0.0.1/99"), slow(1)], [interface("x", "all/8"), slow(2)]],
        {},
        "10.88.0.0/16",
        ["eth0 10.88.0.1", "eth0 10.88.0.2"],
    ),
}
NOTHING: dict[str, Sequence[Machine]] = {
    "a single machine": [[slow(1)]],
    "several nodes on one machine": [[slow(1), fast(1)], [slow(1), fast(1)]],
    "the same address everywhere, as of virtual machines behind NAT": [
        [interface("eth0", "10.0.2.15/24", default=True)],
        [interface("eth0", "10.0.2.15/24", default=True)],
    ],
    "networks without a default route": [[interface("a", "10.1.0.1/24")], [interface("a", "10.2.0.1/24")]],
    "nothing known of one": [[slow(1)], []],
    "nothing known": [[], []],
    "two of three have one address": [[slow(1)], [slow(1), LOOPBACK], [slow(3)]],
}


@pytest.mark.parametrize("case", CASES)
def test_the_network(case: str) -> None:
    machines, reached, name, links = CASES[case]
    network = chosen(*machines, reached=reached)
    assert network is not None and network.name == name
    assert [f"{link.interface} {link.address}" for _, link in sorted(network.links.items())] == links


@pytest.mark.parametrize("case", NOTHING)
def test_no_network(case: str) -> None:
    machines = NOTHING[case]
    names = (
        ["n0"] * len(machines) if case == "several nodes on one machine" else [f"n{index}" for index in range(len(machines))]
    )
    facts = {index: node_facts(name, *one) for index, (name, one) in enumerate(zip(names, machines, strict=True))}
    assert choose_network(facts, {}) is None


def test_nodes_of_one_machine_share_its_link() -> None:
    facts = {0: node_facts("a", slow(1)), 3: node_facts("b", slow(2)), 5: node_facts("a", slow(1))}
    network = choose_network(facts, {})
    assert network is not None and {index: link.address for index, link in network.links.items()} == {
        0: "10.88.0.1",
        3: "10.88.0.2",
        5: "10.88.0.1",
    }


def test_a_tunnel_is_no_rail() -> None:
    def machine(number: int) -> Machine:
        return [interface("eth0", f"10.9.0.{number}/24"), interface("tun0", f"10.1.0.{number}/24")._replace(kind="virtual")]

    network = chosen(machine(1), machine(2))
    assert network is not None and (network.name, network.rails) == ("10.9.0.0/24", ())


def test_rails_are_named() -> None:
    def rails(number: int) -> Machine:
        return [slow(number), *(interface(f"r{rail}", f"10.{rail}.0.{number}/24", speed=400_000) for rail in (1, 2, 3))]

    network = chosen(rails(1), rails(2))
    assert network == chosen(rails(1), rails(2), reached={1: "10.88.0.2"})
    assert network is not None and (network.name, network.speed) == ("10.1.0.0/24", 400_000)
    assert [rail.name for rail in network.rails] == ["10.2.0.0/24", "10.3.0.0/24"]


@pytest.mark.parametrize(
    ("wanted", "name", "links"),
    [
        ("10.88.0.0/16", "10.88.0.0/16", ["eth0 10.88.0.1", "eth0 10.88.0.2"]),
        ("10.0.0.0/8", "10.0.0.0/8", ["eth0 10.88.0.1", "fast0 10.99.0.2"]),
        ("eth0", ROUTED, ["eth0 10.88.0.1", "eth0 10.88.0.2"]),
    ],
)
def test_the_users_network(wanted: str, name: str, links: list[str]) -> None:
    facts = {1: node_facts("a", slow(1), fast(1)), 2: node_facts("b", fast(2), slow(2))}
    network = choose_network(facts, {}, wanted)
    assert network is not None and (network.name, network.rails) == (name, ())
    assert [f"{link.interface} {link.address}" for link in network.links.values()] == links


def test_of_several_addresses_in_the_users_network_that_of_the_head_counts() -> None:
    network = choose_network(
        {1: node_facts("a", slow(1), fast(1)), 2: node_facts("b", slow(2))}, {1: "10.99.0.1"}, "10.0.0.0/8"
    )
    assert network is not None and network.links[1].interface == "fast0"


@pytest.mark.parametrize(
    ("wanted", "message", "context"),
    [
        ("10.99.0.0/24", "no address in that network on c", ["c: eth0 10.88.0.3/16, docker0 172.17.0.1/16"]),
        ("fast0", "no running interface on b,c", ["b: eth0 10.88.0.2/16", "c: eth0 10.88.0.3/16, docker0 172.17.0.1/16"]),
        ("docker0", "a,c have the same address there, 172.17.0.1", ["a: eth0 10.88.0.1/16, fast0 10.99.0.1/24"]),
    ],
)
def test_a_users_network_that_nodes_lack(wanted: str, message: str, context: list[str]) -> None:
    facts = {
        0: node_facts("a", slow(1), fast(1), DOCKER),
        1: node_facts("b", slow(2), fast(2, running=wanted != "fast0")),
        2: node_facts("c", slow(3), DOCKER),
    }
    with pytest.raises(LaunchError) as caught:
        choose_network(facts, {}, wanted, {0: "a", 1: "b", 2: "c"})
    assert caught.value.reference == "network-missing" and caught.value.message == f"--network {wanted}: {message}"
    assert caught.value.context[0].startswith(context[0])


ADDRESSES = st.sampled_from(
    ["10.1.0.1/24", "10.1.0.2/24", "10.1.0.3/24", "10.2.0.1/16", "10.2.0.2/16", "10.3.0.1/32", "fd00::1/64", "x"]
)
INTERFACES = st.lists(
    st.builds(
        lambda name, addresses, speed, default, running: interface(
            name, *addresses, speed=speed, default=default, running=running
        ),
        st.sampled_from(["eth0", "eth1", "docker0", "lo"]),
        st.lists(ADDRESSES, max_size=3),
        st.sampled_from([0, 1000, 100_000]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=3,
)


@given(st.lists(INTERFACES, min_size=1, max_size=4), st.sampled_from(["10.1.0.1", "10.2.0.2", ""]))
def test_whatever_nodes_say_each_machine_has_an_address_of_its_own(machines: list[Machine], came: str) -> None:
    facts = {index: node_facts(f"n{index}", *one) for index, one in enumerate(machines)}
    network = choose_network(facts, dict.fromkeys(facts, came))
    if network is None:
        return
    for one in (network, *network.rails):
        assert len({link.address for link in one.links.values()}) == len(facts) > 1
        for index, link in one.links.items():
            own = [each for each in facts[index].network.interfaces if each.name == link.interface]
            assert any(each.running and f"{link.address}/" in " ".join(each.addresses) for each in own)
    assert network_choices(network, facts).variables.keys() == facts.keys()
