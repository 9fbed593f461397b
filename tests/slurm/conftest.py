"""What the tests on a real Slurm share: the cluster, and that each test leaves its node and its queue empty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import CGROUPS, Slurm
from tests.support.launching import wait_until

END_SECONDS = 10.0


@pytest.fixture(scope="session")
def made_slurm() -> Iterator[Slurm]:
    """Give the cluster."""
    with Slurm() as made:
        yield made


@pytest.fixture(scope="session")
def made_slurm_of_cgroups() -> Iterator[Slurm]:
    """Give one that knows the processes of its jobs by control groups."""
    with Slurm(CGROUPS) as made:
        yield made


@pytest.fixture
def slurm(made_slurm: Slurm) -> Iterator[Slurm]:
    """Give the cluster, and check what the test has left."""
    yield made_slurm
    check_empty(made_slurm)


@pytest.fixture
def slurm_of_cgroups(made_slurm_of_cgroups: Slurm) -> Iterator[Slurm]:
    """Give the other, likewise."""
    yield made_slurm_of_cgroups
    check_empty(made_slurm_of_cgroups)


def check_empty(slurm: Slurm) -> None:
    """Check that a test has left no job, no process and no file."""
    slurm.run("scancel", "--user=root")
    wait_until(lambda: not slurm.queued(), "the queue is empty", 2 * END_SECONDS)
    wait_until(lambda: not slurm.processes(), "no process of a job is left", END_SECONDS)
    assert all(found == ["/dev/shm:", "/tmp:"] for found in slurm.left_files().values()), slurm.left_files()
