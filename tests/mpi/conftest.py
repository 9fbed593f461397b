"""What the matrix shares: hosts that see the PyPI libraries, programs compiled once per library, the file of results."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mpi.families import CACHE, Family
from tests.mpi.results import Results
from tests.support.hosts import Hosts
from tests.support.mpi.programs import compile_programs
from tests.support.paths import PROGRAMS


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    """Give four hosts that see the environments with the libraries at their place."""
    CACHE.mkdir(exist_ok=True)
    with Hosts(4, visible=CACHE) as made:
        yield made


@pytest.fixture(scope="session")
def programs(hosts: Hosts) -> Callable[[Family, str], Path]:
    """Give a function that returns the directory with the programs of a library, where all hosts see them."""

    def of(family: Family, language: str) -> Path:
        if (language == "mpi4py" or not family.package) and not (family.home / "made").exists():
            pytest.fail(f"{family.home} is missing: make {family.home.relative_to(CACHE.parent)}/made")
        if family.mpicc and not shutil.which(family.mpicc):
            pytest.fail(f"{family.mpicc} is missing: apt-get install openmpi-bin libopenmpi-dev mpich libmpich-dev")
        place = hosts.shared / "programs" / family.name
        if not place.exists():
            place.mkdir(parents=True)
            shutil.copy(PROGRAMS / "works.py", place)
            if family.mpicc:
                compile_programs(family.mpicc, place)
        return place

    return of


@pytest.fixture(scope="session")
def results() -> Iterator[Results]:
    """Give what takes down what became of each case; `make test-mpi` keeps it."""
    taken = Results()
    yield taken
    taken.keep()
