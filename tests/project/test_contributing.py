"""Adding a launcher, a framework, an agent or a verb takes the files that CONTRIBUTING.md names, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from mpilaunch.cli import dialects, verbs
from tests.support.paths import ROOT
from tests.support.sources import MODULES, SOURCES, imports_of, module_of

SECTIONS = re.split(r"\n\*\*", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Four things to add")[1])[1:]
KINDS = {
    "The command line of another launcher": ("mpilaunch.cli.dialects", dialects.MODULES.values()),
    "The variables of a framework": ("mpilaunch.job.environment.contracts", ("horovod", "jax", "tensorflow", "torch")),
    "An agent": ("mpilaunch_agents", ("command", "local", "openssh")),
    "A verb": ("mpilaunch.cli.verbs", verbs.NAMES),
}
"""Heading -> the package, and modules that were added in this way."""
MOST_FILES = 8
"""Files that adding one of them may touch, with its tests and pages."""


def named_files(section: str) -> list[str]:
    """Return the paths in the numbered list of a section, with `{a,b}` and NAME as they stand there."""
    steps = section.split("\n\n## ")[0]
    return [path for path in re.findall(r"`([\w./{},-]+)`", steps) if "/" in path or path.endswith(".md")]


def exists(path: str) -> bool:
    return any(ROOT.glob(re.sub(r"\{.*?\}", "*", path).replace("NAME", "*")))


@pytest.mark.parametrize("section", SECTIONS, ids=list(KINDS))
def test_adding_one_takes_the_files_that_are_named(section: str) -> None:
    files = named_files(section)
    assert [path for path in files if not exists(path)] == []
    assert 4 <= len(files) <= MOST_FILES, files
    touched = [path for path in files if path.startswith(("mpilaunch/", "agents/"))]
    assert "NAME.py" in touched[0], "a new module first"


@pytest.mark.parametrize(("package", "names"), KINDS.values(), ids=KINDS)
def test_only_the_package_itself_imports_what_was_added(package: str, names: Iterable[str]) -> None:
    for name in names:
        added = f"{package}.{name}"
        assert added in MODULES
        users = {module_of(path) for path in SOURCES if added in imports_of(path)}
        assert [user for user in users if user != package and not user.startswith(package + ".")] == [], added


def test_every_kind_is_described() -> None:
    assert [re.split("[*.,]", section)[0] for section in SECTIONS] == list(KINDS)
