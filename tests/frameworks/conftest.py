"""What the tests of frameworks share: their Python, two hosts that see it, and a place, so that each test runs at both."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks.places import HERE, HOSTS, PYTHON, Place, copy_programs, frameworks_python
from tests.support.hosts import Hosts

TEST_SECONDS = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test time for imports of several seconds."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    """Give two hosts that see the frameworks at their place."""
    frameworks_python()
    with Hosts(2, visible=PYTHON.parents[1]) as made:
        yield made


@pytest.fixture(params=[HERE, HOSTS])
def place(request: pytest.FixtureRequest, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Give two slots of this machine, then two hosts, and be in a directory that all of them see."""
    if request.param == HERE:
        made = Place(HERE, ("-np", "2"), tmp_path)
    else:
        directory = Path(tempfile.mkdtemp(dir=hosts.shared))
        made = Place(HOSTS, ("-H", ",".join(hosts.names)), directory, hosts)
    copy_programs(made.directory)
    monkeypatch.chdir(made.directory)
    return made
