"""A host dies while its rank is connected to another: that rank notices first, and the host is to blame all the same."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.failures import NODES, proves
from tests.support.hosts import Hosts
from tests.support.launching import MPILAUNCH, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.testbed, pytest.mark.usefixtures("shared")]

PAIR = """
    import os, pathlib, socket, sys, time

    rank, address = os.environ["RANK"], (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == "0":
        with socket.create_server(address) as server:
            peer, _ = server.accept()
        pathlib.Path("up").touch()
        peer.settimeout(1.0)
        try:
            while peer.recv(1):
                pass
        except OSError:
            pass
        sys.exit(1)
    while True:
        try:
            peer = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    while True:
        peer.send(b".")
        time.sleep(0.1)
"""
"""Rank 0 fails when it has heard nothing of rank 1 for a second, or its connection is closed."""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Give two hosts to break."""
    with Hosts(2) as made:
        yield made


@contextlib.contextmanager
def connected(hosts: Hosts, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start a rank on each host, and wait until they are connected."""
    program = ["python3", "-c", textwrap.dedent(PAIR)]
    with hosts.popen([*MPILAUNCH, "--agent", "ssh", *options, "-H", "node01,node02", *program]) as job:
        try:
            wait_until(lambda: Path("up").exists() or job.poll() is not None, "the ranks are connected")
            yield job
        finally:
            job.kill()


def kill_host(hosts: Hosts, name: str) -> None:
    """Kill everything in a host, sshd too; its kernel closes the connections."""
    for pid in set(hosts._inside(name)) - {hosts._pid_one(name)}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@proves(
    "host-dies", NODES, "a host dies while a rank of another is connected to it, `--reconnect-timeout 2`",
    finder="the rank, and the head, which asks all nodes for a sign of life once a rank has failed",
    says="`error[node-lost]: node02: lost: ...`; `rank 0 on node01 failed too: exited with code 1`", code="125", within=15,
)  # fmt: skip
def test_a_host_that_dies_is_to_blame_for_the_rank_that_notices_it(hosts: Hosts) -> None:
    with connected(hosts, "--reconnect-timeout", "2", "--grace", "1") as job:
        kill_host(hosts, "node02")
        _, errors = job.communicate(timeout=15)
    assert job.returncode == 125, errors
    assert "error[node-lost]: node02: lost: " in errors
    assert "    rank 0 on node01 failed too: exited with code 1\n" in errors


def test_a_host_without_power_is_to_blame_after_a_wait_that_is_announced(hosts: Hosts) -> None:
    with connected(hosts, "--reconnect-timeout", "5", "--heartbeat", "8", "--grace", "1") as job:
        hosts.link("node02", up=False)
        kill_host(hosts, "node02")  # and nothing of it reaches the others
        _, errors = job.communicate(timeout=25)
    assert job.returncode == 125, errors
    assert "error[node-lost]: node02: lost: no sign of life for " in errors
    assert "note: rank 0 on node01 exited with code 1; node02 has been silent since before it: waiting 5 s" in errors


def test_a_host_that_answers_in_time_is_not_to_blame(hosts: Hosts) -> None:
    with connected(hosts, "--reconnect-timeout", "20", "--heartbeat", "20", "--grace", "10") as job:
        hosts.link("node02", up=False)
        time.sleep(2.5)  # rank 0 fails meanwhile
        hosts.link("node02", up=True)
        _, errors = job.communicate(timeout=40)
    assert job.returncode == 1, errors
    assert "error[rank-failed]: rank 0 on node01 exited with code 1" in errors


@pytest.mark.parametrize("broken", [("node02",), ("node01", "node02"), ("node02", "node01")])
def test_a_rank_stays_the_first_whose_own_node_or_every_node_breaks_after_it(hosts: Hosts, broken: tuple[str, ...]) -> None:
    text = 'if [ $RANK = 1 ]; then echo $$ > up; exit 3; fi; trap "sleep 3; exit 0" TERM; while :; do sleep 0.1; done'
    options = ("--agent", "ssh", "--reconnect-timeout", "2", "--grace", "5")
    with hosts.popen([*MPILAUNCH, *options, "-H", "node01,node02", "sh", "-c", text]) as job:
        wait_until(lambda: Path("up").exists(), "rank 1 has ended")
        time.sleep(0.5)
        for name in broken:
            kill_host(hosts, name)
        _, errors = job.communicate(timeout=20)
    assert job.returncode == 3, errors
    assert "error[rank-failed]: rank 1 on node02 exited with code 3" in errors


def test_a_rank_stays_the_first_when_the_head_loses_its_network_after_it(hosts: Hosts) -> None:
    text = 'if [ $RANK = 1 ]; then exit 3; fi; trap "echo > asked" TERM; while :; do sleep 0.1; done'
    options = ("--agent", "ssh", "--reconnect-timeout", "2", "--heartbeat", "4", "--grace", "10")
    with hosts.popen([*MPILAUNCH, *options, "-H", "node01,node02", "sh", "-c", text]) as job:
        # Rank 0 is asked to end after its node was asked for a sign of life, which then needs only to reach the head.
        wait_until(lambda: Path("asked").exists(), "rank 0 is asked to end")
        time.sleep(0.5)
        for name in hosts.names:
            hosts.link(name, up=False)
        _, errors = job.communicate(timeout=60)
    assert job.returncode == 3, errors
    assert "error[rank-failed]: rank 1 on node02 exited with code 3" in errors
    wait_until(lambda: not any(map(hosts.processes, hosts.names)), "the nodes have ended it on their own")
