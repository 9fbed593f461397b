"""What the tests on a real cluster share: the cluster, a launcher and its workers, and that each test leaves pods empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.jobs import Jobs
from tests.cluster.kubectls import KUBECTLS, SECOND

TEST_SECONDS = 240


def pytest_report_header() -> str:
    """Tell which kubectl are run."""
    websocket = "" if SECOND else "; there is none of 1.30 or newer, which would try WebSocket"
    return f"cluster: kubectl {', '.join(KUBECTLS)}{websocket}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test time for a cluster to come up."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Give the cluster."""
    with Cluster(SECOND[1] if SECOND else None) as made:
        yield made


@pytest.fixture(scope="session")
def made_jobs(cluster: Cluster) -> Jobs:
    """Give a launcher and workers whose first processes reap nothing, with the Role of the examples."""
    return Jobs(cluster, "jobs")


@pytest.fixture(scope="session")
def made_sharing_jobs(cluster: Cluster) -> Jobs:
    """Give the same, with workers whose processes share a namespace with a first one that reaps."""
    return Jobs(cluster, "sharing", share=True)


@pytest.fixture
def jobs(made_jobs: Jobs) -> Iterator[Jobs]:
    """Give the launcher and its workers, and see that nothing is left in them: no process, no zombie."""
    yield made_jobs
    made_jobs.check_empty()


@pytest.fixture
def sharing_jobs(made_sharing_jobs: Jobs) -> Iterator[Jobs]:
    """Give them, and see that nothing is left in them."""
    yield made_sharing_jobs
    made_sharing_jobs.check_empty()


@pytest.fixture(autouse=True)
def _no_process_left() -> None:
    """Leave out what other tests are held to: here the pods are looked at, and the cluster's own processes come and go."""
