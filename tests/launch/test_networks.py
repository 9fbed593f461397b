"""Jobs on hosts with several networks, on which libraries by themselves choose the wrong one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import Hosts
from tests.support.mpi.programs import compile_programs
from tests.support.networks import DOCKER, LOOPBACK, NetworkedHosts
from tests.support.paths import PROGRAMS
from tests.support.torches import torch_on

NAMED_AT = {"at loopback": LOOPBACK, "at the bridge": DOCKER, "unknown": None}
NAMES = "MASTER_ADDR|[A-Z]*_SOCKET_IFNAME|OMPI_MCA_btl_tcp.*|UCX_NET_DEVICES|VLLM_HOST_IP"
SHOW = f"[ $RANK = 0 ] || env | grep -E '^({NAMES})=' | sort"


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Give three hosts of two networks, on each of which a bridge for containers has the same address."""
    with NetworkedHosts(3) as made:
        yield made


@pytest.fixture(scope="module")
def rings(hosts: Hosts, mpich: str, openmpi: str) -> dict[str, Path]:
    """Give a program that sends a message around, compiled with each library."""
    found = {}
    for family, compiler in (("mpich", mpich), ("openmpi", openmpi)):
        (hosts.shared / family).mkdir()
        found[family] = compile_programs(compiler, hosts.shared / family) / "ring"
    return found


def variables(hosts: Hosts, *options: str) -> tuple[dict[str, str], str]:
    """Return what a rank on node02 has of the variables, and what mpilaunch says."""
    done = hosts.launch("--wdir", "/", "-H", "node01,node02", *options, "sh", "-c", SHOW)
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines()), done.stderr


@pytest.mark.testbed
def test_of_two_equal_networks_the_heads_is_used_and_the_bridge_avoided(hosts: Hosts) -> None:
    found, said = variables(hosts)
    assert found == {
        "MASTER_ADDR": hosts.address("node01"),
        "VLLM_HOST_IP": hosts.address("node02"),
        "OMPI_MCA_btl_tcp_if_include": "10.88.0.0/16,10.99.0.0/24",
        "UCX_NET_DEVICES": "eth0,fast0",
    }
    assert said == (
        "note: ranks use the network 10.88.0.0/16 (eth0, 10 Gb/s), where libraries would not all find it: "
        "set OMPI_MCA_btl_tcp_if_include, UCX_NET_DEVICES\n"
    )


@pytest.mark.testbed
@pytest.mark.parametrize("network", ["10.99.0.0/24", "fast0"])
def test_the_users_network(hosts: NetworkedHosts, network: str) -> None:
    found, said = variables(hosts, "--network", network)
    assert found == {
        "MASTER_ADDR": hosts.fast_address("node01"),
        "VLLM_HOST_IP": hosts.fast_address("node02"),
        "GLOO_SOCKET_IFNAME": "fast0",
        "TP_SOCKET_IFNAME": "fast0",
        "OMPI_MCA_btl_tcp_if_include": "10.99.0.0/24" if "/" in network else "fast0",
        "UCX_NET_DEVICES": "fast0",
        "NCCL_SOCKET_IFNAME": "=fast0",
    }
    assert said.startswith("note: ranks use the network ") and said.count("\n") == 1


@pytest.mark.testbed
def test_what_the_user_sets_stays_and_none_sets_nothing(hosts: Hosts) -> None:
    own = ("-x", "OMPI_MCA_btl_tcp_if_exclude=lo,docker0", "-x", "UCX_NET_DEVICES=lo")
    found, said = variables(hosts, *own)
    assert {name: value for name, value in found.items() if name.startswith(("OMPI", "UCX"))} == {
        "OMPI_MCA_btl_tcp_if_exclude": "lo,docker0",
        "UCX_NET_DEVICES": "lo",
    }
    assert said == ""
    found, said = variables(hosts, "--network", "none")
    assert set(found) == {"MASTER_ADDR", "VLLM_HOST_IP"} and said == ""


@pytest.mark.testbed
def test_a_network_that_a_node_lacks_starts_nothing(hosts: NetworkedHosts) -> None:
    with hosts.without("node03", "fast0"):
        done = hosts.launch("--wdir", "/", "-H", "node[01-03]", "--network", "10.99.0.0/24", "echo", "started")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.splitlines()[0] == (
            "error[network-missing]: --network 10.99.0.0/24: no address in that network on node03"
        )
        found, _ = variables(hosts)  # the two others still share both
        assert found["UCX_NET_DEVICES"] == "eth0,fast0"


@pytest.mark.testbed
@pytest.mark.parametrize("network", ["auto", "fast0"])
def test_open_mpi_passes_the_bridge_by(hosts: Hosts, rings: dict[str, Path], network: str) -> None:
    done = hosts.launch("--wdir", "/", "-H", "node[01-03]", "--network", network, str(rings["openmpi"]), "3")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{rank} of 3, 0 of 1 on node0{rank + 1}" for rank in range(3)]


@pytest.mark.testbed
def test_two_hosts_use_the_cable_between_them(hosts: NetworkedHosts, rings: dict[str, Path]) -> None:
    with hosts.cable("node01", "node02", "192.168.7.1/30", "192.168.7.2/30"):
        found, _ = variables(hosts, "--network", "192.168.7.0/30")
        assert (found["MASTER_ADDR"], found["OMPI_MCA_btl_tcp_if_include"]) == ("192.168.7.1", "192.168.7.0/30")
        words = ("-H", "node[01-02]", "--network", "cable0", str(rings["openmpi"]), "2")
        done = hosts.launch("--wdir", "/", *words)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [f"{rank} of 2, 0 of 1 on node0{rank + 1}" for rank in range(2)]


@pytest.mark.testbed
def test_mpich_passes_the_bridge_by(hosts: NetworkedHosts, rings: dict[str, Path]) -> None:
    words = ["--wdir", "/", "-H", "node[01-02]", "--network", "fast0", str(rings["mpich"]), "2"]
    with hosts.bridge_preferred():
        done = hosts.run_mpi([sys.executable, "-m", "mpilaunch", *words], 2)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{rank} of 2, 0 of 1 on node0{rank + 1}" for rank in range(2)]


@pytest.mark.testbed
def test_without_mpilaunchs_choice_mpich_does_not_reach_its_peer(hosts: NetworkedHosts, rings: dict[str, Path]) -> None:
    words = ("-H", "node[01-02]", "--network", "none", "--timeout", "10", str(rings["mpich"]), "2")
    with hosts.bridge_preferred():  # among links that carry the same, UCX may take the right ones
        assert hosts.launch("--wdir", "/", *words).returncode != 0


@pytest.mark.slow
@pytest.mark.testbed
def test_without_mpilaunchs_choice_open_mpi_hangs(hosts: Hosts, rings: dict[str, Path]) -> None:
    words = ("-H", "node[01-02]", "--network", "none", "--timeout", "10", str(rings["openmpi"]), "2")
    done = hosts.launch("--wdir", "/", *words)
    assert done.returncode == 124 and done.stdout == ""


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.parametrize("named", NAMED_AT)
def test_torch_on_gloo_wherever_the_own_name_leads(hosts: NetworkedHosts, named: str) -> None:
    program = str(shutil.copy(PROGRAMS / "torch_allreduce.py", hosts.shared))
    with torch_on(hosts, hosts.names) as options, hosts.named(NAMED_AT[named]):
        done = hosts.launch("--wdir", "/", "-H", "node[01-03]", *options, "python3", program, timeout=200)
        assert done.returncode == 0 and done.stdout == "3 ranks agree\n", done.stderr
        alone = hosts.launch("--wdir", "/", "-H", "node[01-02]", *options, "--network", "none", "python3", program)
        assert alone.returncode == 1 and "Gloo connectFullMesh failed" in alone.stderr
