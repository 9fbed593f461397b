"""The results of the frameworks: the file that `make test-frameworks` writes, and the table in docs/frameworks.md made from it.

A row is a test that passed at each place. A run of some tests only replaces their rows.
"""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.frameworks.places import HERE, HOROVOD_PYTHON, HOSTS, PYTHON
from tests.support.paths import DOCS

FILE = Path(__file__).parent / "results.json"
PAGE = DOCS / "frameworks.md"
BEGIN, END = "<!-- Written by make test-frameworks: do not edit. -->\n", "<!-- End of what make test-frameworks writes. -->\n"
_COLUMNS = ("framework", "program", "options", "the ranks print, here and on two hosts", "without that", "test")


@dataclass
class Row:
    """What one test found.

    Attributes:
        title, package: the framework; the package whose version is shown.
        program: what the program calls.
        options: of mpilaunch; "none" for most.
        seen: what the ranks printed, by place.
        control: what happens without the variables, or the option, by which the ranks find each other.
    """

    title: str
    package: str
    program: str
    options: str
    seen: dict[str, str] = field(default_factory=dict)
    control: str = ""


class Seen:
    """Takes down what a test sees at one place."""

    def __init__(self) -> None:
        self.text = self.control = ""

    def ranks(self, done: subprocess.CompletedProcess[str], *lines: str) -> None:
        """Check that a run succeeded and printed these lines among others."""
        assert done.returncode == 0, done.stderr[-4000:]
        # JAX's Gloo writes its own lines to stdout.
        assert set(lines) <= set(done.stdout.splitlines()), done.stdout
        self.text = "; ".join(lines)

    def alone(self, done: subprocess.CompletedProcess[str], line: str) -> None:
        """Check that both ranks ran alone, and successfully: the control of a framework that does not notice."""
        assert done.returncode == 0, done.stderr[-4000:]
        assert [got for got in done.stdout.splitlines() if got.startswith(line.split()[0])] == [line] * 2, done.stdout
        self.control = f"two worlds of one: {line}, twice"

    def fails(self, done: subprocess.CompletedProcess[str], error: str) -> None:
        """Check that a run failed with an error."""
        assert done.returncode != 0 and error in done.stderr, done.stdout + done.stderr[-4000:]
        self.control = f"fails: {error}"


def keep(rows: Mapping[str, Row]) -> None:
    """Write the file and the page with the rows of tests that passed at both places; the others stay as they were."""
    whole = {name: asdict(row) for name, row in rows.items() if row.seen.keys() == {HERE, HOSTS}}
    if not whole:
        return
    with FILE.open("r+", encoding="utf-8") as held:
        # Another process of the same run may have rows, too.
        fcntl.flock(held, fcntl.LOCK_EX)
        tests = {name: row for name, row in sorted({**json.load(held)["tests"], **whole}.items()) if name in names_of_tests()}
        data = {
            "schema": "mpilaunch.frameworks/1",
            "tests": {name: {**row, "version": _version(row)} for name, row in tests.items()},
        }
        FILE.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(replace_table(PAGE.read_text(encoding="utf-8"), table(data)), encoding="utf-8")


def names_of_tests() -> set[str]:
    """Return the names of the tests in this folder that fill a row."""
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    marked = re.compile(r"^@pytest\.mark\.framework\((?:.*?)\n(?:@.*\n)*def (test_\w+)", re.MULTILINE | re.DOTALL)
    return {name for source in sources for name in marked.findall(source)}


def replace_table(page: str, new: str) -> str:
    """Return the page with a new table."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + new + END + rest.partition(END)[2]


def table(data: Mapping[str, Any]) -> str:
    """Return the table of the page."""
    rows = [_COLUMNS, ["---"] * len(_COLUMNS)]
    for name, row in sorted(data["tests"].items(), key=lambda pair: pair[1]["title"].lower()):
        seen = row["seen"]
        title = f"{row['title']} {row['version']}"
        printed = seen[HERE] if seen[HERE] == seen[HOSTS] else f"{seen[HERE]}, and {seen[HOSTS]}"
        rows.append([title, row["program"], row["options"], printed, row["control"], f"`{name}`"])
    return "\n" + "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows) + "\n"


def _version(row: Mapping[str, Any]) -> str:
    """Return the version that ran; that of an older row where the package is missing."""
    ask = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    python = HOROVOD_PYTHON if row["package"] == "horovod" else PYTHON
    if not python.exists():
        return str(row.get("version", ""))
    done = subprocess.run([python, "-c", ask, row["package"]], capture_output=True, text=True, check=False)
    return done.stdout.strip() or str(row.get("version", ""))
