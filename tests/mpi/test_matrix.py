"""Every MPI library gives a real MPI_COMM_WORLD under mpilaunch, at every place, with no option said for it.

`make test-slow` runs Debian's two libraries in C and one of each family from PyPI with mpi4py; `make test-mpi` runs all, also
under the library's own launcher, and writes what came of it into docs/mpi.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mpi.cases import MPILAUNCH, Case, every_case
from tests.mpi.families import Family
from tests.mpi.outcomes import outcome
from tests.mpi.results import ALL, BEGIN, END, FAILED, FILE, PAGE, Results, replace_tables, tables
from tests.mpi.runs import run
from tests.support.hosts import Hosts

CASES = [case for case in every_case() if ALL or case.in_test_slow]


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, hosts: Hosts, programs: Callable[[Family, str], Path], results: Results) -> None:
    results.take(case, FAILED)
    done = run(case, programs(case.family, case.language), hosts)
    try:
        results.take(case, outcome(case, done))
    except AssertionError as error:
        if case.launcher == MPILAUNCH:
            raise
        # What others cannot do is no fault of ours: it is told in the table.
        pytest.xfail(f"not under its own launcher: {error}")


def test_the_page_shows_what_was_found() -> None:
    data = json.loads(FILE.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    assert BEGIN in page and END in page
    assert page == replace_tables(page, tables(data))
    assert set(data["cases"]) <= {str(case) for case in every_case()}
