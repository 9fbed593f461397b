"""Where the machines of a job reach each other, and what their ranks are told of it."""

from __future__ import annotations

from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.preparation.messages import preparations
from mpilaunch.job.preparation.reach import network_of, reach_of, server_address
from mpilaunch.job.preparation.world_facts import world_facts
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.worlds import first_worlds, spawned_world
from mpilaunch.placement.network import Network
from tests.support.command_line import job_of
from tests.support.facts import interface, node_facts


def facts(docker: bool = True) -> dict[int, NodeFacts]:
    """Two hosts with a slow network, by which the head came, and a fast one."""
    bridge = [interface("docker0", "172.17.0.1/16")] if docker else []
    return {
        index: node_facts(
            f"n{index}",
            *bridge,
            interface("eth0", f"10.88.0.{index + 1}/16", speed=1000, default=True),
            interface("fast0", f"10.99.0.{index + 1}/24", speed=100_000),
            seen_at=f"10.88.0.{index + 1}",
            name_at=(f"10.99.0.{index + 1}",),
        )
        for index in range(2)
    }


def network(job: JobSpec, known: dict[int, NodeFacts]) -> Network | None:
    return network_of(job, first_worlds(job)[0], known)


def test_every_address_is_of_the_network_that_the_nodes_share() -> None:
    job = job_of("-H a,b --profile tf,horovod prog")
    (world,) = first_worlds(job)
    known = world_facts(job, world, facts())
    assert known.addresses == {0: "10.99.0.1", 1: "10.99.0.2"}
    assert known.master_addr == "10.99.0.1" and known.rendezvous is not None and known.rendezvous.address == "10.99.0.1"
    for index, message in preparations(job, world, known, {}):
        assert message["defaults"]["VLLM_HOST_IP"] == f"10.99.0.{index + 1}"
        assert message["defaults"]["OMPI_MCA_btl_tcp_if_include"] == "10.99.0.0/24"
    assert known.note.startswith("ranks use the network 10.99.0.0/24 (fast0, 100 Gb/s)")


def test_a_variable_of_the_user_stays() -> None:
    job = job_of("-H a,b -x UCX_NET_DEVICES=lo -x OMPI_MCA_btl_tcp_if_exclude=lo -x NCCL_NET=Socket prog")
    variables = reach_of(job, first_worlds(job)[0], facts()).variables
    assert set(variables[0]) & {"UCX_NET_DEVICES", "OMPI_MCA_btl_tcp_if_include", "NCCL_SOCKET_IFNAME"} == set()


def test_what_is_said_and_set_by_choice() -> None:
    job = job_of("-H a,b --network none prog")
    assert network(job, facts()) is None
    assert reach_of(job, first_worlds(job)[0], facts()) == ({0: "10.88.0.1", 1: "10.88.0.2"}, {}, "")
    job = job_of("-H a,b --network 10.88.0.0/16 prog")
    assert reach_of(job, first_worlds(job)[0], facts()).addresses == {0: "10.88.0.1", 1: "10.88.0.2"}


def test_roles_share_one_network() -> None:
    job = job_of("--role a -np 1 -host a x : --role b -np 1 -host b y")
    worlds = first_worlds(job)
    assert [world_facts(job, world, facts()).master_addr for world in worlds] == ["10.99.0.1", "10.99.0.2"]
    assert world_facts(job, worlds[1], facts()).roles["a.master_addr"] == "10.99.0.1"


def test_a_spawned_world_uses_the_network_of_all_that_run() -> None:
    job = job_of("-H a,b,c -np 3 prog")
    (first,) = first_worlds(job)
    slow_only = node_facts(
        "n2", interface("docker0", "172.17.0.1/16"), interface("eth0", "10.88.0.3/16", speed=1000, default=True)
    )
    known = {**facts(), 2: slow_only}
    ask = {"world": job.job_id, "rank": 0, "apps": [{"program": ["c"], "count": 1, "environment": {}, "info": {}}], "pairs": {}}
    child = spawned_world(job, [first], ask, ())
    assert child.job_map.nodes == (0,)
    parents, children = world_facts(job, first, known), world_facts(job, child, known)
    # Alone, node 0 would need nothing; without the third node, it would use fast0.
    assert children.variables[0] == parents.variables[0] and children.variables[0]["UCX_NET_DEVICES"] == "eth0"
    assert children.master_addr == parents.master_addr == "10.88.0.1"


def test_where_the_head_reaches_the_server() -> None:
    assert server_address(job_of("-H a,b prog"), facts()) == "10.99.0.1"
    assert server_address(job_of("-H a prog"), {0: facts()[0]}) == "10.88.0.1"
    assert server_address(job_of("-H local:2 prog"), {0: facts()[0]}) == "127.0.0.1"
    assert server_address(job_of("-H a,b prog"), {}) == "a"


def test_as_long_as_not_all_nodes_are_known_there_is_no_network() -> None:
    job = job_of("-H a,b prog")
    assert network(job, {0: facts()[0]}) is None
    found = network(job, facts())
    assert found is not None and found.name == "10.99.0.0/24"
