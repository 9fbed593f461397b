"""What all tests share: the check that no process is left behind, and the hosts, which exist only once a test asks for them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.hosts import Hosts
from tests.support.kubernetes.pods import NAMESPACE, Pods
from tests.support.kubernetes.podserver import Pod
from tests.support.mpi.programs import debian_compiler
from tests.support.processes import everything, left_behind, mark_environment
from tests.support.requirements import BY_FIXTURE, check_needs, hand_down_no_ignored_signal

NAMED_ONLY = tuple(Path(__file__).parent / name for name in ("cluster", "frameworks", "grid_engine", "peers", "slurm"))
"""Tests that need what is built or fetched for them: `make test-cluster`, `test-frameworks` and so on name them."""

settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")
mark_environment()
hand_down_no_ignored_signal()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave tests that only a target of their own runs to that target."""
    paths = [config.invocation_params.dir / word.partition("::")[0] for word in config.args]
    named = any(path == collection_path or collection_path in path.parents for path in paths)
    return True if collection_path in NAMED_ONLY and not named else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by what its fixtures need, before -m chooses."""
    for item in items:
        for name in BY_FIXTURE.keys() & getattr(item, "fixturenames", ()):
            item.add_marker(BY_FIXTURE[name])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test whose needs are missing: no skip hides them."""
    check_needs(item)


@pytest.fixture(scope="session")
def openmpi() -> str:
    """Give the compiler of Debian's Open MPI."""
    return debian_compiler("openmpi")


@pytest.fixture(scope="session")
def mpich() -> str:
    """Give the compiler of Debian's MPICH."""
    return debian_compiler("mpich")


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    """Give four hosts; a test leaves them as it found them."""
    with Hosts(4) as made:
        yield made


@pytest.fixture(scope="session")
def links() -> Iterator[Path]:
    """Give a directory with the command under the names of the shells; not below /tmp, which is each host's own."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    command = folder / "mpilaunch"
    command.write_text(f"#!{sys.executable}\nfrom mpilaunch.__main__ import entry\nentry()\n", encoding="utf-8")
    command.chmod(0o755)
    for name in ("pdsh", "pdcp", "rpdcp", "clush", "dshbak"):
        (folder / name).symlink_to(command)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def shared(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a new directory that the head and all hosts see."""
    monkeypatch.chdir(tempfile.mkdtemp(dir=hosts.shared))
    return Path.cwd()


@pytest.fixture(scope="session")
def made_pods() -> Iterator[Pods]:
    """Give three pods and their launcher, for all tests."""
    with Pods(3) as made:
        yield made


@pytest.fixture
def pods(made_pods: Pods) -> Iterator[Pods]:
    """Give the pods, with a server that does no more than its duty; what a test asks of it ends with the test."""
    made_pods.server.reset()
    yield made_pods
    made_pods.server.end_sessions()
    made_pods.server.reset()


@pytest.fixture
def jobset(pods: Pods) -> Iterator[tuple[str, ...]]:
    """Give the hosts of two pods of a JobSet, whose names have a suffix."""
    names = tuple(f"train-node-0-{number}" for number in range(2))
    made = {
        (NAMESPACE, f"{name}-x{number}y"): Pod(
            f"{name}-x{number}y", NAMESPACE, hostname=name, subdomain="train", host=f"job-worker-{number}"
        )
        for number, name in enumerate(names)
    }
    pods.server.pods.update(made)
    yield tuple(f"{name}.train" for name in names)
    for key in made:
        del pods.server.pods[key]


@pytest.fixture
def stdin_given_back() -> Iterator[None]:
    """Let a test take another stdin."""
    kept = os.dup(0)
    yield
    os.dup2(kept, 0)
    os.close(kept)


@pytest.fixture(autouse=True)
def _no_process_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process here, or on the hosts if it used them."""
    used = [request.getfixturevalue(name) for name in ("hosts", "made_pods") if name in request.fixturenames]

    def on_hosts(before: Collection[int]) -> dict[int, str]:
        found = [(name, pid, argv) for made in used for name in made.names for pid, argv in made.processes(name)]
        return {pid: f"{name}: {argv}" for name, pid, argv in found if pid not in before}

    before = everything()
    yield
    left = {**left_behind(before), **left_behind(before, on_hosts)}
    assert not left, f"processes left behind: {left}"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the settings of whoever runs the tests out of them."""
    for name in list(os.environ):
        if name.startswith("MPILAUNCH_"):
            monkeypatch.delenv(name)
