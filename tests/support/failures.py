"""The table of failures: each row is declared by the test that proves it, which must end within the time that the row names.

docs/failures.md is made of these rows; tests/project/test_docs.py holds the page to them.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.support.paths import ROOT, TESTS

Test = TypeVar("Test", bound=Callable[..., None])

RANKS = "A rank fails"
REASONS = "The reason is reported"
SIGNALS = "Signals to mpilaunch"
START = "The start"
NODES = "Nodes and connections"
STRAYS = "What ranks leave behind"
LIMITS = "Time limits, and the limits of machines"
GROUPS = (RANKS, REASONS, SIGNALS, START, NODES, STRAYS, LIMITS)


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        name: stable; benchmarks/failures.py does the same to other launchers under this name.
        group: heading that it stands under.
        what: what happens.
        finder: what detects it.
        says: what the user reads.
        code: the exit code of mpilaunch.
        within: seconds that the whole test may take, from the start of mpilaunch to the end of its last process.
        test: the test that proves it.
    """

    name: str
    group: str
    what: str
    finder: str
    says: str
    code: str
    within: float
    test: str


_rows: dict[str, Row] = {}


def proves(
    name: str, group: str, what: str, *, finder: str, says: str, code: str, within: float
) -> Callable[[Test], Test]:
    """Declare the row that a test proves; the test fails when it takes longer than the row says."""

    def declare(test: Test) -> Test:
        assert name not in _rows or _rows[name].test.endswith(f"::{test.__name__}"), f"two tests prove {name}"
        path = f"{test.__module__.replace('.', '/')}.py"
        _rows[name] = Row(name, group, what, finder, says, code, within, f"{path}::{test.__name__}")

        @functools.wraps(test)
        def timed(*args: Any, **options: Any) -> None:
            began = time.monotonic()
            test(*args, **options)
            seconds = time.monotonic() - began
            assert seconds <= within, f"{name}: took {seconds:.1f} s, and is to take {within:g} s"

        return timed  # type: ignore[return-value]

    return declare


def rows() -> list[Row]:
    """Return every row that a test declares, sorted by group and file, and in the order of the tests."""
    for path in sorted(TESTS.glob("*/test_*.py")):
        if "@proves(" in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return sorted(_rows.values(), key=lambda row: (GROUPS.index(row.group), row.test.partition("::")[0]))


def with_part(page: str, part: str, text: str) -> str:
    """Return docs/failures.md with one of its two parts, `rows` or `peers`, made anew."""
    begin, end = f"<!-- {part} -->\n", f"<!-- end of {part} -->\n"
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def page_rows() -> str:
    """Return the tables of docs/failures.md."""
    parts = []
    for group in GROUPS:
        lines = ["| what happens | detected by | within | what you read | exit code | left |", "| --- " * 6 + "|"]
        for row in rows():
            if row.group == group:
                cells = (row.what, row.finder, f"{row.within:g} s", row.says, row.code, "0")
                lines.append("| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |")
        parts.append(f"### {group}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)
