"""What all tests share: the check that no process is left behind, and the hosts, which exist only once a test asks for them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

import pytest

from tests.hosts import Hosts
from tests.processes import everything, left_behind, mark_environment

mark_environment()


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    """Give four hosts; a test leaves them as it found them."""
    with Hosts(4) as made:
        yield made


@pytest.fixture(autouse=True)
def _no_process_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process here, or on the hosts if it used them."""
    used: Hosts | None = request.getfixturevalue("hosts") if "hosts" in request.fixturenames else None

    def on_hosts(before: Collection[int]) -> dict[int, str]:
        if used is None:
            return {}
        found = [(name, pid, argv) for name in used.names for pid, argv in used.processes(name)]
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
