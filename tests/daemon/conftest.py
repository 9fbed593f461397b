"""Fixtures of the tests of PMIx: Open MPI programs, and a directory for temporary files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.mpi.programs import compile_programs


@pytest.fixture(scope="session")
def programs(openmpi: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the directory of the programs, compiled with Open MPI."""
    return compile_programs(openmpi, tmp_path_factory.mktemp("openmpi"))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty directory for temporary files; a test must leave it empty."""
    place = tmp_path / "files"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return place
