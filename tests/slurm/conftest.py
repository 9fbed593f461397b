"""What the tests on a real Slurm share: the cluster, and that each test leaves its node and its queue empty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Slurm
from tests.support.launching import wait_until

END_SECONDS = 10.0


@pytest.fixture(scope="session")
def made_slurm() -> Iterator[Slurm]:
    """Give the cluster."""
    with Slurm() as made:
        yield made


@pytest.fixture
def slurm(made_slurm: Slurm) -> Iterator[Slurm]:
    """Give the cluster, and check that the test has left no job, no process and no file."""
    yield made_slurm
    made_slurm.run("scancel", "--user=root")
    wait_until(lambda: not made_slurm.queued(), "the queue is empty", 2 * END_SECONDS)
    wait_until(lambda: not made_slurm.processes(), "no process of a job is left", END_SECONDS)
    assert all(found == ["/dev/shm:", "/tmp:"] for found in made_slurm.left_files().values()), made_slurm.left_files()
