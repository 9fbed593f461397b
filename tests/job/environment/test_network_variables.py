"""Which variables lead libraries to the network of a job, and where nothing is set."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mpilaunch.hosts.network_facts import Interface, Port
from mpilaunch.hosts.node_facts import Gpu, NodeFacts
from mpilaunch.job.environment.network_variables import network_choices
from mpilaunch.placement.network import choose_network
from tests.support.facts import interface, node_facts

DOCKER = interface("docker0", "172.17.0.1/16")
UNUSED_DOCKER = interface("docker0", "172.17.0.1/16", running=False)
GLOO, TENSORPIPE = "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"
OPEN_MPI, UCX, NCCL = "OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES", "NCCL_SOCKET_IFNAME"
LIBFABRIC, HCCL = "FI_TCP_IFACE", "HCCL_SOCKET_IFNAME"
BY_NAME = {GLOO: "eth0", TENSORPIPE: "eth0"}


def node(number: int, *interfaces: Interface, at: Sequence[str] | None = None, ports: Sequence[Port] = ()) -> NodeFacts:
    """A node with eth0 and `interfaces`, whose own name is at eth0 if `at` says nothing else."""
    own = f"10.88.0.{number}"
    eth0 = interface("eth0", f"{own}/16", speed=1000, default=True)
    return node_facts(f"n{number}", *interfaces, eth0, name_at=(own,) if at is None else tuple(at), ports=tuple(ports))


def fast(number: int, name: str = "fast0", speed: int = 100_000) -> Interface:
    return interface(name, f"10.99.0.{number}/24", speed=speed)


def routed(number: int, *interfaces: Interface) -> NodeFacts:
    eth0 = interface("eth0", f"10.244.{number}.7/32", default=True)
    return node_facts(f"n{number}", *interfaces, eth0, name_at=(f"10.244.{number}.7",))


def sixth(number: int, *interfaces: Interface) -> NodeFacts:
    return node_facts(f"n{number}", interface("eth0", f"fd00::{number}/64"), *interfaces, name_at=(f"fd00::{number}",))


CASES: dict[str, tuple[Sequence[NodeFacts], dict[str, str]]] = {
    "one clean network": ([node(1), node(2)], {}),
    "pods": ([routed(1), routed(2)], {}),
    "the own name of one leads to loopback": ([node(1), node(2, at=["127.0.1.1"])], BY_NAME),
    "the own name is at two addresses": ([node(1, at=["10.88.0.1", "127.0.1.1"]), node(2)], BY_NAME),
    "the own name is not in /etc/hosts": ([node(1, at=[]), node(2, at=[])], BY_NAME),
    "a bridge that no container uses": ([node(1, UNUSED_DOCKER), node(2, UNUSED_DOCKER)], {OPEN_MPI: "10.88.0.0/16"}),
    "a bridge in use": ([node(1, DOCKER), node(2)], {OPEN_MPI: "10.88.0.0/16", UCX: "eth0"}),
    "a bridge of another name": (
        [node(1, interface("br-3f0a", "172.18.0.1/16")), node(2)],
        {OPEN_MPI: "10.88.0.0/16", UCX: "eth0", NCCL: "=eth0"},
    ),
    "a fast network beside the one of the names": (
        [node(1, fast(1)), node(2, fast(2, "ens1"))],
        {GLOO: "fast0", TENSORPIPE: "fast0", OPEN_MPI: "10.99.0.0/24", UCX: "fast0", NCCL: "=fast0"},
    ),
    "a bridge that counts as faster": (
        [node(1, interface("docker0", "172.17.0.1/16", speed=10_000)), node(2)],
        {OPEN_MPI: "10.88.0.0/16", UCX: "eth0", LIBFABRIC: "eth0"},
    ),
    "two of one speed": ([node(1, fast(1, speed=1000)), node(2, fast(2, speed=1000))], {}),
    "two of one speed and a bridge": (
        [node(1, fast(1, speed=1000), DOCKER), node(2, fast(2, speed=1000), DOCKER)],
        {OPEN_MPI: "10.88.0.0/16,10.99.0.0/24", UCX: "eth0,fast0"},
    ),
    "IPoIB is what NCCL takes first": (
        [node(1, interface("ib0", "10.7.0.1/24", speed=10)), node(2, interface("ib0", "10.7.0.2/24", speed=10))],
        {OPEN_MPI: "10.88.0.0/16", UCX: "eth0", NCCL: "=eth0"},
    ),
    "pods with a bridge of their own": (
        [routed(1, interface("br-x", "172.18.0.1/16")), routed(2)],
        {OPEN_MPI: "eth0", UCX: "eth0", NCCL: "=eth0", LIBFABRIC: "eth0"},
    ),
    "IPv6 only": ([sixth(1), sixth(2)], {}),
    "IPv6 beside a bridge of IPv4": ([sixth(1, DOCKER), sixth(2)], {OPEN_MPI: "eth0", UCX: "eth0"}),
    "IPv6 addresses beside those of the network": (
        [node(1, interface("eth1", "fd00::1/64")), node(2, interface("eth1", "fd01::1/64"))],
        {},
    ),
}
INFINIBAND = Port("mlx5_0:1", "InfiniBand", True, 200)


def variables(nodes: Sequence[NodeFacts], *given: str) -> list[dict[str, str]]:
    facts = dict(enumerate(nodes))
    network = choose_network(facts, {0: "10.88.0.1", 1: "10.88.0.2"})
    assert network is not None
    return [dict(of_one) for of_one in network_choices(network, facts, given).variables.values()]


@pytest.mark.parametrize("case", CASES)
def test_what_is_set(case: str) -> None:
    nodes, expected = CASES[case]
    assert variables(nodes)[0] == expected


def test_the_interface_is_named_as_each_node_names_it() -> None:
    first, second = variables([node(1, fast(1)), node(2, fast(2, "ens1"))])
    assert {name: (first[name], second[name]) for name in (GLOO, UCX, NCCL, OPEN_MPI)} == {
        GLOO: ("fast0", "ens1"),
        UCX: ("fast0", "ens1"),
        NCCL: ("=fast0", "=ens1"),
        OPEN_MPI: ("10.99.0.0/24", "10.99.0.0/24"),
    }


def test_infiniband_is_not_hidden() -> None:
    nodes = [node(1, fast(1), ports=[INFINIBAND]), node(2, fast(2))]
    assert set(variables(nodes)[0]) == {GLOO, TENSORPIPE, OPEN_MPI}


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("OMPI_MCA_btl_tcp_if_exclude", {GLOO, TENSORPIPE, UCX, NCCL}),
        ("NCCL_NET", {GLOO, TENSORPIPE, OPEN_MPI, UCX}),
        ("NCCL_NET_PLUGIN", {GLOO, TENSORPIPE, OPEN_MPI, UCX}),
        (GLOO, {TENSORPIPE, OPEN_MPI, UCX, NCCL}),
        ("UCX_NET_DEVICES", {GLOO, TENSORPIPE, OPEN_MPI, NCCL}),
    ],
)
def test_what_the_user_or_a_node_has_chosen_stays(given: str, left: set[str]) -> None:
    nodes = [node(1, fast(1)), node(2, fast(2))]
    assert set(variables(nodes, given)[0]) == set(variables(nodes, given)[1]) == left
    by_file = nodes[0]._replace(network=nodes[0].network._replace(settings=(given,)))
    first, second = variables([by_file, nodes[1]])
    assert set(first) == left and set(second) == {GLOO, TENSORPIPE, OPEN_MPI, UCX, NCCL}


def test_hccl_takes_the_first_by_name() -> None:
    npu = Gpu("ascend", 0)
    nodes = [node(1, interface("bond0", "172.18.0.1/16"))._replace(gpus=(npu,)), node(2)._replace(gpus=(npu,))]
    assert variables(nodes)[0][HCCL] == variables(nodes)[1][HCCL] == "=eth0"
    assert HCCL not in variables([node(1)._replace(gpus=(npu,)), nodes[1]])[0]


def test_only_what_is_known_to_miss_counts_as_missed() -> None:
    def missed(*nodes: NodeFacts) -> bool:
        facts = dict(enumerate(nodes))
        network = choose_network(facts, {})
        assert network is not None
        return network_choices(network, facts).missed

    assert not missed(node(1), node(2))
    assert not missed(node(1, at=[]), node(2))
    assert missed(node(1, at=["127.0.1.1"]), node(2))
    assert missed(node(1, DOCKER), node(2))
    # What every node has chosen by itself is nothing to tell of.
    chosen = [one._replace(network=one.network._replace(settings=(OPEN_MPI, UCX))) for one in (node(1, DOCKER), node(2))]
    assert not missed(*chosen)
