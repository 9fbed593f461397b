"""The docs rule: what the documents say is what the program does.

Options, error references and exit codes are held to the code, members of JSON to real output, links to files, and the commands
of the README are run on the hosts and must print what stands there.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mpilaunch.cli.options import BY_FLAG, OPTIONS
from mpilaunch.cli.types import Option
from mpilaunch.errors import ExitCode
from mpilaunch.head.nodes.failures import WORDS
from mpilaunch.hosts.node_facts import Gpu
from tests.support import goldens
from tests.support.failures import page_rows, with_part
from tests.support.hosts import Hosts
from tests.support.paths import ROOT
from tests.support.sources import OTHERS, OURS

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("configs/*.md"), *ROOT.glob("examples/*.md")])
SOURCES = sorted([*ROOT.glob("mpilaunch/**/*.py"), *ROOT.glob("agents/**/*.py")])


def rows(page: str, under: str = "") -> list[list[str]]:
    """The cells of every table row of a page, or of what stands under one heading of it; heads and rules left out."""
    text = (DOCS / page).read_text(encoding="utf-8")
    if under:
        text = re.split(r"\n## ", text.split(f"## {under}\n", 1)[1])[0]
    tables = re.findall(r"(?:^\|.*\n?)+", text, re.M)
    lines = [line for table in tables for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# Options

OPTION_ROWS = [row for row in rows("options.md") if codes(row[0]) and codes(row[0])[0].startswith("-") and len(row) == 4]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_every_option_is_in_the_table_with_its_flags_choices_and_default(option: Option) -> None:
    found = [row for row in OPTION_ROWS if any(BY_FLAG.get(flag) is option for flag in codes(row[0]))]
    assert {flag for row in found for flag in codes(row[0])} == set(option.flags)
    first = found[0]
    assert tuple(codes(first[1])) == option.choices
    assert ("+" in first[1]) == option.multiple
    if option.default not in (None, False, ()):
        assert codes(first[2]) == [f"{option.default:g}" if isinstance(option.default, float) else str(option.default)]


def test_the_table_has_no_other_options() -> None:
    assert {flag for row in OPTION_ROWS for flag in codes(row[0])} == {flag for option in OPTIONS for flag in option.flags}


# Errors


def references() -> Iterator[str]:
    """Every reference that the source gives an error, as a regular expression where a part of it is computed."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (given := _reference_of(node)) is not None:
                yield from _texts(given)


def _reference_of(call: ast.Call) -> ast.expr | None:
    name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name in ("LaunchError", "UsageError", "error") and call.args:
        return call.args[0]
    if name == "Verdict" and len(call.args) > 1:
        return call.args[1]
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    return given.get("cause") if name == "_replace" and "exit_code" in given else None


def _texts(given: ast.expr) -> Iterator[str]:
    if isinstance(given, ast.IfExp):
        yield from _texts(given.body)
        yield from _texts(given.orelse)
    elif isinstance(given, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "[a-z]+(-[a-z]+)*" for part in given.values)  # type: ignore[misc]
    elif isinstance(given, ast.Constant):
        yield str(given.value)


SAID = {text for text in references() if re.fullmatch(r"[a-z]+(-[a-z]+|\S*[+*]\S*)*", text)} - {"ok"}
LISTED = [codes(row[0])[0] for row in rows("errors.md")]


def test_every_error_is_in_the_docs_and_no_other() -> None:
    assert len(LISTED) == len(set(LISTED))
    missing = [said for said in SAID if not any(re.fullmatch(said, listed) for listed in LISTED)]
    unknown = [listed for listed in LISTED if not any(re.fullmatch(said, listed) for said in SAID)]
    assert (missing, unknown) == ([], [])


def test_every_cause_of_a_failed_start_is_in_the_docs() -> None:
    causes = {listed.removeprefix("start-") for listed in LISTED if listed.startswith("start-")}
    assert causes - {"failed"} == set(WORDS)


def test_every_golden_error_has_a_listed_reference() -> None:
    golden = [path.read_text(encoding="utf-8") for path in (ROOT / "tests/golden/messages").iterdir()]
    shown = {match[1] for text in golden if (match := re.match(r"error\[([^]]+)\]", text))}
    assert shown
    assert shown <= set(LISTED)


# Exit codes


def test_every_exit_code_is_in_the_docs() -> None:
    listed = {row[1]: int(row[0]) for row in rows("exit-codes.md") if len(row) == 3 and row[1]}
    assert listed == {code.name: code.value for code in ExitCode}


# JSON


def members(data: Any, name: str = "") -> set[str]:
    """The paths of all members, `[]` for the items of a list of objects."""
    if isinstance(data, dict):
        return {path for key, value in data.items() for path in members(value, f"{name}.{key}" if name else key)}
    if isinstance(data, list) and any(isinstance(item, dict) for item in data):
        return {path for item in data for path in members(item, f"{name}[]")}
    return {name}


def mpilaunch(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "agents")))}
    command = [sys.executable, "-m", "mpilaunch", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, stdin=subprocess.DEVNULL)


def test_the_report_has_the_members_that_are_documented(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    # The shell goes on when the pipe of $() is closed: after the setsid.
    script = "up=$(setsid sh -c 'exec sleep 600 >/dev/null 2>&1' &); echo oops >&2; exit 3"
    assert mpilaunch("--report", str(path), "-H", "local,local", "--", "sh", "-c", script).returncode == 3
    report = json.loads(path.read_text(encoding="utf-8"))
    # The plan has a table of its own, and a machine without GPUs shows none.
    found = {"plan" if name.startswith("plan.") else name for name in members(report) if not name.startswith("nodes[].gpus")}
    found |= {f"nodes[].gpus[].{name}" for name in Gpu._fields}
    assert found == {codes(row[0])[0] for row in rows("report.md", "The report")}


def test_the_plan_has_the_members_that_are_documented(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("node01 slots=2 gpus=0-1 cpus=0-3\nnode02\n", encoding="utf-8")
    done = mpilaunch("--dry-run", "--json", "-f", str(hosts), "train.py")
    plan = json.loads(done.stdout)
    options = {path for option in plan.pop("options").values() for path in members(option, "options.NAME")}
    part = mpilaunch("--dry-run", "--json", "--nnodes=2", "--node-rank=1", "--master-addr=a", "--master-port=1", "x")
    of_part = {name for name in members(json.loads(part.stdout)) if name.startswith("part.")}
    assert members(plan) | options | of_part == {codes(row[0])[0] for row in rows("report.md", "The plan")}


# Design


def test_the_layer_table_is_the_rule_that_is_tested() -> None:
    for layer, ours, others in rows("design.md", "Imports between layers"):
        assert set(ours.split(", ")) - {""} == OURS[layer]
        assert set(others.split(", ")) - {""} == OTHERS.get(layer, set())
    assert {layer for layer, *_ in rows("design.md", "Imports between layers")} == set(OURS)


def test_the_layout_names_what_is_there() -> None:
    text = (DOCS / "design.md").read_text(encoding="utf-8").split("## The layout\n", 1)[1].split("```")[1]
    folders: list[str] = []
    named = set()
    for line in text.strip().splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        for word in line.strip().split("   ")[0].split():
            named.add("/".join([*folders[:depth], word.rstrip("/")]))
            if word.endswith("/"):
                folders[depth:] = [word.rstrip("/")]
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("mpilaunch/*.py") if not path.name.startswith("__")}
    inits = [path for root in ("mpilaunch", "agents") for path in (ROOT / root).rglob("__init__.py")]
    packages = {str(path.parent.relative_to(ROOT)) for path in inits}
    assert sorted((modules | packages) - named) == []


LIMITS = [row for row in rows("wire.md", "Messages that the head rejects") if " in `" in row[0]]


@pytest.mark.parametrize("row", LIMITS, ids=lambda row: " ".join(codes(row[0])))
def test_the_limits_of_the_wire_are_those_of_the_code(row: list[str]) -> None:
    *names, module = codes(row[0])
    known = importlib.import_module("mpilaunch." + module.removesuffix(".py").replace("/", "."))
    said = {int(number.replace(",", "")) for number in re.findall(r"\b\d[\d,]*\b", row[1])}
    assert said == {int(vars(known)[name]) for name in names}


# Security


def test_the_tests_that_the_page_of_security_names_are_there() -> None:
    named = set(re.findall(r"\btest_\w+", (DOCS / "security.md").read_text(encoding="utf-8")))
    tests = [path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py")]
    assert named
    assert sorted(named - {name for text in tests for name in re.findall(r"^ *(?:async )?def (test_\w+)", text, re.M)}) == []


# Failures


@pytest.mark.parametrize("part", ["rows", "peers"])
def test_the_page_of_failures_is_made_of_what_tests_prove_and_what_was_measured(part: str) -> None:
    page = DOCS / "failures.md"
    text = page.read_text(encoding="utf-8")
    made = with_part(text, part, page_rows() if part == "rows" else peers_page())
    if goldens.UPDATE:
        page.write_text(made, encoding="utf-8")
        text = made
    assert text == made, "MPILAUNCH_UPDATE_GOLDEN=1 makes it anew"


def peers_page() -> str:
    """Run benchmarks/failures.py for its page alone."""
    command = [sys.executable, str(ROOT / "benchmarks" / "failures.py"), "--page"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


# Links and pictures


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_source_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"`([\w./-]+/[\w.-]+\.py)`", page.read_text(encoding="utf-8"))
    places = (ROOT, ROOT / "mpilaunch")
    assert [path for path in named if "NAME" not in path and not any((place / path).exists() for place in places)] == []


def test_every_page_is_linked() -> None:
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in PAGES
        for target in re.findall(r"\]\(([^)\s:]+)\)", page.read_text(encoding="utf-8"))
    }
    assert [page for page in DOCS.glob("*.md") if page not in linked] == []


@pytest.mark.parametrize("picture", sorted(DOCS.glob("pictures/*.svg")), ids=lambda path: path.name)
def test_pictures_are_small_and_fetch_nothing(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert len(text) < 30_000
    assert not re.search(r"url\(|href|@import|<script", text)


# The README's commands


def normal(line: str) -> str:
    """A line without what differs from run to run: numbers, and the blanks before them."""
    return re.sub(r"\d+", "N", line).strip()


TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
CONSOLES = re.findall(r"```console\n(.*?)```", TEXT, re.S)
TODAY = re.findall(r"^\| .* \| `(mpilaunch .*)` \|$", TEXT, re.M)
SHELL = re.findall(r"^mpilaunch .*$", "".join(re.findall(r"```sh\n(.*?)```", TEXT, re.S)), re.M)


@pytest.fixture
def project(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A directory like a user's, which all hosts see; gives the environment in which `mpilaunch` is a command."""
    place = hosts.shared / "readme"
    (place / "bin").mkdir(parents=True, exist_ok=True)
    command = place / "bin" / "mpilaunch"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m mpilaunch "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    (place / "train.py").write_text((ROOT / "examples/hello.py").read_text(encoding="utf-8"), encoding="utf-8")
    (place / "hosts.txt").write_text("node01 slots=8\nnode02 slots=8\n", encoding="utf-8")
    monkeypatch.chdir(place)
    yield {"PATH": f"{place}/bin{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.testbed
@pytest.mark.parametrize("block", CONSOLES, ids=lambda block: block.splitlines()[0][2:60])
def test_what_the_readme_shows_is_what_happens(block: str, hosts: Hosts, project: dict[str, str]) -> None:
    commands = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    shown = [line for line in block.splitlines() if not line.startswith("$ ")]
    done = hosts.run(["bash", "-c", "\n".join(["exec 2>&1", *commands])], env=project)
    assert sorted(map(normal, done.stdout.splitlines())) == sorted(map(normal, shown))


@pytest.mark.testbed
@pytest.mark.parametrize("command", [*TODAY, *SHELL])
def test_commands_without_output_are_right(command: str, hosts: Hosts, project: dict[str, str]) -> None:
    looked = command.replace("mpilaunch ", "mpilaunch --dry-run ", 1)
    done = hosts.run(["bash", "-c", looked], env=project)
    assert (done.returncode, done.stderr) == (0, "")
    assert "program: " in done.stdout


def test_the_makes_of_the_readme_are_there() -> None:
    told = set(re.findall(r"(?:^|`)make ([a-z]+)", TEXT, re.M))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert {"run", "test", "lint", "bench"} <= told <= targets
