"""The results of the matrix: the file that `make test-mpi` writes, and the tables in docs/mpi.md, which are made from it.

results.json is what was run last, case by case; a run of some cases only replaces those.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.mpi.cases import LANGUAGES, MPILAUNCH, OWN, Case, every_case
from tests.mpi.families import FAMILIES, ROOT
from tests.mpi.limits import LEFTOVERS, LIMITS, NEEDS, needs_of
from tests.mpi.works import WORKS

FILE = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs" / "mpi.md"
BEGIN, END = "<!-- Written by make test-mpi: do not edit. -->\n", "<!-- End of what make test-mpi writes. -->\n"

ALL = os.environ.get("MPILAUNCH_TEST_MPI") == "all"
"""Whether all cases run, and the results are kept. Read here, since the tests themselves see no MPILAUNCH_*."""

PASSED, LIMITED, FAILED = "passed", "limited", "failed"


class Results:
    """What became of the cases of this run."""

    def __init__(self) -> None:
        self._outcomes: dict[str, str] = {}

    def take(self, case: Case, outcome: str) -> None:
        """Take down what became of a case."""
        self._outcomes[str(case)] = outcome

    def keep(self) -> None:
        """Write the file and the page anew."""
        if not ALL or not self._outcomes:
            return
        old = json.loads(FILE.read_text(encoding="utf-8"))["cases"] if FILE.exists() else {}
        found = {**old, **self._outcomes}
        cases = {str(case): found[str(case)] for case in every_case() if str(case) in found}
        data = {"schema": "mpilaunch.mpi/1", "versions": {family.name: family.version() for family in FAMILIES}, "cases": cases}
        FILE.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(replace_tables(text, tables(data)), encoding="utf-8")


def replace_tables(page: str, new: str) -> str:
    """Return the page with new tables."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + new + END + rest.partition(END)[2]


def tables(data: Mapping[str, Any]) -> str:
    """Return the tables of the page, a footnote for each limit and need."""
    notes: dict[str, int] = {}
    parts = [
        "\nUnder mpilaunch:\n",
        _table(data, MPILAUNCH, notes),
        "\nUnder the library's own launcher, for the same cases as far as it supports them:\n",
        _table(data, OWN, notes),
        "",
        *(f"{number}. {note}." for note, number in notes.items()),
        "",
    ]
    return "\n".join(parts) + "\n"


def _table(data: Mapping[str, Any], launcher: str, notes: dict[str, int]) -> str:
    rows = [["library", "in", *(work.name for work in WORKS)]]
    for family in FAMILIES:
        for language in LANGUAGES:
            cells = [_cell(data["cases"], launcher, family.name, language, work.name, notes) for work in WORKS]
            if any(cell != "-" for cell in cells):
                rows.append([f"{family.title} {data['versions'][family.name]}", language, *cells])
    head, *body = rows
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *body))


def _cell(outcomes: Mapping[str, str], launcher: str, family: str, language: str, work: str, notes: dict[str, int]) -> str:
    def done(case: Case, outcome: str) -> bool:
        return outcomes[str(case)] == outcome

    def number(note: str) -> str:
        return f"({notes.setdefault(note, len(notes) + 1)})"

    cases = [
        case
        for case in every_case()
        if (case.launcher, case.family.name, case.language, case.work.name) == (launcher, family, language, work)
        and str(case) in outcomes
    ]
    if not cases:
        return "-"
    passed = sum(done(case, PASSED) for case in cases)
    words = [f"{passed} of {len(cases)}"]
    words += [number(limit.reason) for limit in LIMITS if any(case.limit is limit for case in cases if done(case, LIMITED))]
    words += [number(left.reason) for left in LEFTOVERS if any(case.leftover is left for case in cases if done(case, LIMITED))]
    for need in NEEDS:
        if any(need in needs_of(family, work, case.place) for case in cases):
            settings = ", ".join(f"`{name}={value}`" for name, value in need.variables.items())
            words.append(number(f"With {settings}: {need.reason}"))
    failed = sum(done(case, FAILED) for case in cases)
    words += [f"**{failed} failed**"] if failed else []
    return " ".join(words)
