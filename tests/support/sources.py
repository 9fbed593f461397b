"""The project's modules, their layers and their imports, as tests of the structure see them."""

from __future__ import annotations

import ast
import pathlib
from functools import cache

from tests.support.paths import ROOT

SOURCES = sorted([*ROOT.glob("mpilaunch/**/*.py"), *ROOT.glob("agents/mpilaunch_agents/**/*.py")])

OURS = {
    "errors": set(),
    "text": set(),
    "defaults": set(),
    "agent": {"defaults", "text", "errors"},
    "relay": {"agent"},
    "asyncio_timeouts": set(),
    "hosts": {"agent", "text", "errors"},
    "placement": {"hosts", "text", "errors"},
    "job": {"placement", "hosts", "agent", "wire", "defaults", "text", "errors"},
    "wire": set(),
    "daemon": {"wire"},
    "agents": {"agent", "relay", "hosts", "defaults", "asyncio_timeouts", "text", "errors"},
    "head": {"job", "placement", "hosts", "agents", "agent", "relay", "wire", "defaults", "asyncio_timeouts", "text", "errors"},
    "cli": {"head", "job", "placement", "hosts", "agents", "agent", "defaults", "text", "errors"},
    "main": {"cli"},
    "api": {"main"},
}
"""Layer -> the other layers that it may import. A folder of mpilaunch/ is a layer, and so is each module beside them."""

PURE = {"errors", "text", "defaults", "hosts", "placement", "job", "wire"}
"""Layers without I/O."""

OTHERS = {
    "agents": {"asyncssh", "cryptography", "psutil", "pytest"},
    "cli": {"click", "rich", "yaml", "psutil", "ClusterShell"},
    "head": {"psutil"},
    "asyncio_timeouts": {"async_timeout"},
    "api": {"pytest"},
}
"""Layer -> what it may import beside the standard library."""


def module_of(path: pathlib.Path) -> str:
    """Return the dotted name of a source file."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] == "agents":
        del parts[0]
    return ".".join(parts).removesuffix(".__init__")


MODULES = {module_of(path) for path in SOURCES}


def layer_of(module: str) -> str:
    """Return the layer of a module of ours."""
    top, *rest = module.split(".")
    if top == "mpilaunch_agents":
        return "agents"
    return {"__main__": "main"}.get(rest[0], rest[0]) if rest else "text"


@cache
def imports_of(path: pathlib.Path) -> frozenset[str]:
    """Return every module that a file imports, anywhere in it, also by `import_module` or a text "module:attribute".

    `from mpilaunch import x` counts as `mpilaunch.x` where that is a module.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            found.update({f"{node.module}.{alias.name}" for alias in node.names} & MODULES or {str(node.module)})
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module":
            found.update(str(argument.value) for argument in node.args if isinstance(argument, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            module, colon, _ = node.value.partition(":")
            found.update({module} & MODULES if colon else ())
    return frozenset(found)
