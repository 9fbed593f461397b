"""Frameworks on two hosts where a bridge for containers has one address on both, and whose own names lead astray."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks.places import HOROVOD_PYTHON, PYTHON, frameworks_python, horovod_python
from tests.support.hosts import Hosts
from tests.support.networks import LOOPBACK, NetworkedHosts

PROGRAMS = Path(__file__).parent / "programs"
TWO = ("--wdir", "/", "-H", "node01,node02", "--timeout", "40")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Give two hosts that see the frameworks at their place."""
    frameworks_python()
    with NetworkedHosts(2, visible=PYTHON.parents[1]) as made:
        yield made


@pytest.mark.testbed
def test_jax_passes_the_bridge_by_where_the_own_name_is_right(hosts: NetworkedHosts) -> None:
    program = str(shutil.copy(PROGRAMS / "jax_sum.py", tempfile.mkdtemp(dir=hosts.shared)))
    done = hosts.launch(*TWO, frameworks_python(), program)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]
    assert sorted(lines) == ["rank 0 of 2 sum 3", "rank 1 of 2 sum 3"]


@pytest.mark.testbed
def test_jaxs_own_gloo_follows_a_wrong_own_name(hosts: NetworkedHosts) -> None:
    # docs/environment.md says so: no variable leads it elsewhere.
    program = str(shutil.copy(PROGRAMS / "jax_sum.py", tempfile.mkdtemp(dir=hosts.shared)))
    with hosts.named(LOOPBACK):
        done = hosts.launch(*TWO, frameworks_python(), program)
    assert done.returncode != 0 and "sum" not in done.stdout
    assert "127.0.1.1" in done.stderr or done.returncode == 124, done.stderr


@pytest.fixture(scope="module")
def horovod_hosts() -> Iterator[NetworkedHosts]:
    """Give two hosts that see Horovod at its place."""
    horovod_python()
    with NetworkedHosts(2, visible=HOROVOD_PYTHON.parents[1]) as made:
        yield made


@pytest.mark.testbed
def test_horovod_on_gloo_passes_the_bridge_by_where_the_own_name_is_right(horovod_hosts: NetworkedHosts) -> None:
    hosts = horovod_hosts
    program = str(shutil.copy(PROGRAMS / "horovod_sum.py", tempfile.mkdtemp(dir=hosts.shared)))
    words = ("--profile", "horovod", str(HOROVOD_PYTHON), program, "1")
    done = hosts.launch(*TWO, *words)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 2 cross {rank} of 2 sum 3" for rank in range(2)]
    # docs/environment.md says so: its process sets take the address of the own name, whatever HOROVOD_GLOO_IFACE says.
    with hosts.named(LOOPBACK):
        astray = hosts.launch(*TWO, "-x", "HOROVOD_GLOO_IFACE=eth0", *words)
    assert astray.returncode != 0 and "sum" not in astray.stdout
