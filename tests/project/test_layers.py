"""The layer rule: who may import whom, read from the source. docs/design.md explains it; the table here is the rule."""

from __future__ import annotations

import ast
import pathlib
import sys

import pytest

from tests.support.paths import ROOT

SOURCES = sorted([*ROOT.glob("mpilaunch/**/*.py"), *ROOT.glob("agents/mpilaunch_agents/**/*.py")])

LAYERS = ("mpilaunch.wire", "mpilaunch.daemon", "mpilaunch.head", "mpilaunch_agents")
PURE = "pure"
NAMED = {
    "mpilaunch.agent": "agent",
    "mpilaunch.relay": "agent",
    "mpilaunch.config": "config",
    "mpilaunch.console": "console",
    "mpilaunch.prepare": "prepare",
    "mpilaunch.prepare_nodes": "prepare",
    "mpilaunch.help": "help",
    "mpilaunch.cli": "cli",
    "mpilaunch.__main__": "cli",
}

OURS = {
    "wire": {"wire"},
    "daemon": {"daemon", "wire"},
    PURE: {PURE, "agent"},
    "agent": {PURE, "agent"},
    "agents": {"agents", "agent", PURE},
    "config": {PURE},
    "console": {PURE},
    "prepare": {PURE, "agent", "config", "prepare"},
    "head": {"head", "agent", "wire", PURE},
    "help": {PURE},
    "cli": {PURE, "agent", "config", "console", "help", "prepare", "head", "cli"},
}
"""Layer -> the layers that it may import."""

OTHERS = {
    "agents": {"asyncssh", "cryptography", "psutil", "pytest"},
    "config": {"yaml"},
    "console": {"rich"},
    "head": {"psutil"},
    "help": {"click"},
}
"""Layer -> what it may import beside the standard library."""

NO_IO = {"asyncio", "socket", "subprocess", "selectors", "threading", "signal", "multiprocessing", "select"}
"""A pure module decides; it waits for nothing and reads nothing."""
KNOWN_NAMES_ONLY = {"mpilaunch.job.state": {"signal"}}
"""jobstate takes the names of signals from `signal`, and handles none."""


def module_of(path: pathlib.Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] == "agents":
        del parts[0]
    return ".".join(parts).removesuffix(".__init__")


def layer_of(module: str) -> str:
    for layer in LAYERS:
        if module == layer or module.startswith(layer + "."):
            return {"mpilaunch_agents": "agents"}.get(layer, layer.rpartition(".")[2])
    return NAMED.get(module, PURE)


def imports_of(path: pathlib.Path) -> set[str]:
    """Every module that a file imports, anywhere in it; `from mpilaunch import x` is mpilaunch.x when that is a module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            found.update({f"{node.module}.{alias.name}" for alias in node.names} & MODULES or {str(node.module)})
    return found


MODULES = {module_of(path) for path in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_follow_the_layers(path: pathlib.Path) -> None:
    module = module_of(path)
    layer = layer_of(module)
    for imported in imports_of(path):
        top = imported.partition(".")[0]
        if top in ("mpilaunch", "mpilaunch_agents"):
            assert imported == "mpilaunch" or layer_of(imported) in OURS[layer], f"{module} ({layer}) imports {imported}"
        elif top not in sys.stdlib_module_names:
            assert top in OTHERS.get(layer, set()), f"{module} ({layer}) imports {imported}"
        elif layer in ("wire", PURE):
            assert top not in NO_IO - KNOWN_NAMES_ONLY.get(module, set()), f"{module} does I/O: it imports {imported}"


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_every_module_opens_with_its_law_and_is_of_a_readable_size(path: pathlib.Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"
    assert text.count("\n") <= 400, f"{path} has {text.count(chr(10))} lines: it wants to be two modules"


def test_the_rule_knows_every_layer() -> None:
    assert {layer_of(module) for module in MODULES} == set(OURS)
