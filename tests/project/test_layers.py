"""The rules of the source: which folder may import which, and how large modules and folders may be.

The table is in tests/support/sources.py; docs/design.md explains it.
"""

from __future__ import annotations

import ast
import pathlib
import re
import sys
from collections import Counter

import pytest

from tests.support.paths import ROOT
from tests.support.sources import MODULES, OTHERS, OURS, PURE, SOURCES, imports_of, layer_of, module_of

NO_IO = {"asyncio", "socket", "subprocess", "selectors", "threading", "signal", "multiprocessing", "select"}
"""A pure module decides; it waits for nothing and reads nothing."""
KNOWN_NAMES_ONLY = {"mpilaunch.job.state": {"signal"}}
"""job.state takes the names of signals from `signal`, and handles none."""
LONGEST_MODULE = 400
MOST_MODULES = 12
MOST_AT_THE_TOP = 8
MOST_ATTRIBUTES = 15


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_follow_the_layers(path: pathlib.Path) -> None:
    module = module_of(path)
    layer = layer_of(module)
    for imported in imports_of(path):
        top = imported.partition(".")[0]
        if top in ("mpilaunch", "mpilaunch_agents"):
            allowed = imported == "mpilaunch" or layer_of(imported) in {layer, *OURS[layer]}
            assert allowed, f"{module} ({layer}) imports {imported}"
        elif top not in sys.stdlib_module_names:
            assert top in OTHERS.get(layer, set()), f"{module} ({layer}) imports {imported}"
        elif layer in PURE:
            assert top not in NO_IO - KNOWN_NAMES_ONLY.get(module, set()), f"{module} does I/O: it imports {imported}"


def test_no_module_imports_itself_through_others() -> None:
    graph = {module_of(path): imports_of(path) & MODULES for path in SOURCES}
    free: set[str] = set()
    while leaves := {module for module in graph if module not in free and graph[module] - {module} <= free}:
        free |= leaves
    assert sorted(graph.keys() - free) == []


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_every_module_opens_with_its_law_and_is_of_a_readable_size(path: pathlib.Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"
    assert text.count("\n") <= LONGEST_MODULE, f"{path} has {text.count(chr(10))} lines: it should be two modules"


def test_no_folder_holds_more_modules_than_a_reader_can_see_at_once() -> None:
    count = Counter(path.parent.relative_to(ROOT) for path in SOURCES)
    assert {str(folder): number for folder, number in count.items() if number > MOST_MODULES} == {}
    assert count[pathlib.Path("mpilaunch")] <= MOST_AT_THE_TOP


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_no_class_has_more_attributes_than_a_reader_can_remember(path: pathlib.Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and "NamedTuple" not in map(ast.unparse, node.bases):
            stored = (one for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store))
            names = {one.attr for one in stored if isinstance(one.value, ast.Name) and one.value.id == "self"}
            names |= {ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
            assert len(names) <= MOST_ATTRIBUTES, f"{path}:{node.lineno}: {node.name} has {len(names)}"


def test_the_rule_knows_every_layer() -> None:
    assert {layer_of(module) for module in MODULES} == set(OURS)


def test_no_test_imports_from_another_test() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        assert [name for name in imports_of(path) if ".test_" in name] == [], path
        # A test may also hand a program as text to an interpreter of its own.
        assert not re.search(r"\b(from|import) tests\.[a-z.]*test_", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_nothing_replaces_pythons_modules_or_the_private_parts_of_others(path: pathlib.Path) -> None:
    """The boot line of a node alone puts the bundle on the path; it is a text in `head.nodes.bundle`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sys":
            assert node.attr not in ("modules", "meta_path", "path_hooks"), f"{path}:{node.lineno}"
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert isinstance(node, ast.stmt)
            private = name.startswith("_") and name != "__future__"
            assert not private and name != "marshal", f"{path}:{node.lineno}: {name}"


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_no_method_is_found_by_a_text(path: pathlib.Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            assert not (isinstance(node.args[0], ast.Name) and node.args[0].id == "self"), f"{path}:{node.lineno}"
        assert not (isinstance(node, ast.alias) and node.name == "attrgetter"), path


ROWS = {"hosts.schedulers", "job.environment.contracts", "job.servers"}
"""Folders with one module for each launcher or framework, whose rows are tested together."""


def test_every_pure_module_has_a_test_file_by_its_name() -> None:
    without = []
    for path in SOURCES:
        module = module_of(path).removeprefix("mpilaunch.")
        decides = any(isinstance(node, ast.FunctionDef) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        if layer_of(module_of(path)) in PURE and path.name != "__init__.py" and decides:
            folder, _, name = module.rpartition(".")
            name = folder.rpartition(".")[2] if folder in ROWS else name
            places = (ROOT / "tests").glob(f"**/test_{name}.py") if folder else [ROOT / "tests" / f"test_{name}.py"]
            top = module.partition(".")[0]
            if not any(place.exists() and place.relative_to(ROOT / "tests").parts[0] in (top, place.name) for place in places):
                without.append(module)
    assert without == []
