"""What the tests of frameworks share: two hosts that see the frameworks, a place, so that each test runs at both, the rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks.places import HERE, HOSTS, PYTHON, Place, copy_programs, frameworks_python
from tests.frameworks.results import Row, Seen, keep
from tests.support.hosts import Hosts

TEST_SECONDS = 300


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark of these tests."""
    config.addinivalue_line(
        "markers", "framework(title, package, program, options): the row of docs/frameworks.md that a test fills"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test time for imports of several seconds; one process runs it at both places, for its row."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))
            item.add_marker(pytest.mark.xdist_group(item.name.partition("[")[0]))


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    """Give two hosts that see the frameworks at their place."""
    frameworks_python()
    with Hosts(2, visible=PYTHON.parents[1]) as made:
        yield made


@pytest.fixture(params=[HERE, HOSTS])
def place(request: pytest.FixtureRequest, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Give slots of this machine, then two hosts, and be in a directory that all of them see."""
    shared = request.param == HOSTS
    made = Place(HOSTS, Path(tempfile.mkdtemp(dir=hosts.shared)), hosts) if shared else Place(HERE, tmp_path)
    copy_programs(made.directory)
    monkeypatch.chdir(made.directory)
    return made


@pytest.fixture(scope="session")
def rows() -> Iterator[dict[str, Row]]:
    """Give the rows of this run; those of tests that passed at each place are kept."""
    found: dict[str, Row] = {}
    yield found
    keep(found)


@pytest.fixture
def seen(request: pytest.FixtureRequest, place: Place, rows: dict[str, Row]) -> Iterator[Seen]:
    """Give what takes down what a test sees; a test that fails fills no row."""
    taken = Seen()
    failed = request.session.testsfailed
    yield taken
    name = request.node.originalname
    row = rows.setdefault(name, Row(*request.node.get_closest_marker("framework").args))
    if request.session.testsfailed == failed:
        row.seen[place.name], row.control = taken.text, taken.control
