"""What the tests on a real Grid Engine share: the cluster, and that each test leaves its machines and its queue empty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.grid_engine.cluster import GridEngine
from tests.support.launching import wait_until

END_SECONDS = 15.0


@pytest.fixture(scope="session")
def made_grid() -> Iterator[GridEngine]:
    """Give the cluster."""
    with GridEngine() as made:
        yield made


@pytest.fixture
def grid(made_grid: GridEngine) -> Iterator[GridEngine]:
    """Give the cluster, and check that the test has left no job, no process and no file."""
    yield made_grid
    made_grid.run("qdel", "-u", "root")
    wait_until(lambda: not made_grid.queued(), "the queue is empty", END_SECONDS)
    wait_until(lambda: not made_grid.processes(), "no process of a job is left", END_SECONDS)
    # Grid Engine itself has a directory for each job, which goes a moment after the job.
    wait_until(lambda: all(found == ["/dev/shm:", "/tmp:"] for found in made_grid.left_files().values()), "no file is left")
