"""Modules that are loaded when somebody needs them, and not when somebody imports them. Travels to every node.

A launch and a daemon import much of the standard library for the sake of a name in an annotation, a base class or a message
that is never said; loading that would be a third of their time.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock

TYPE_CHECKING = False  # `typing` is one of these modules; type checkers take this name as true
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any


_loading = allocate_lock()


class _StandIn(type(sys)):  # type: ignore[misc]
    """Stands for a module that is not loaded (PEP 562 does not tell it from one that has a `__getattr__` of its own)."""

    def __getattr__(self, attribute: str) -> Any:
        return getattr(load(self.__name__), attribute)


class _Pattern:
    """A pattern that is compiled when something is first matched against it."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self._given, self._more = given, more

    def __getattr__(self, method: str) -> Any:
        def first(*given: Any, **more: Any) -> Any:
            vars(self)[method] = compiled = getattr(load("re").compile(*self._given, **self._more), method)
            return compiled(*given, **more)

        return first


def put_off(name: str, known: Mapping[str, Any]) -> None:
    """Let a module be loaded when it is first asked for anything but what is known of it.

    `importlib.util.LazyLoader` is of no use: the next `import` looks at `__spec__`, and that loads it.
    """
    if name not in sys.modules:
        sys.modules[name] = stand_in(name, known)


def stand_in(name: str, known: Mapping[str, Any]) -> ModuleType:
    """Return what `put_off` puts in a module's place; whoever has it keeps it, and whoever else imports it gets the module."""
    module = _StandIn(name)
    module.__dict__.update({**known, "__name__": name})
    return module


def put_off_re() -> None:
    """Put `re` off, which takes longer than all of our patterns: few launches and hardly a daemon match anything."""
    put_off("re", {"compile": _compile, "ASCII": 256, "DOTALL": 16, "IGNORECASE": 2, "MULTILINE": 8, "VERBOSE": 64})


def _compile(*given: Any, **more: Any) -> Any:
    # Others may ask of a pattern what ours cannot answer. json matches nothing where its C half is there.
    user = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
    compiled = _Pattern if user in ("json", "mpilaunch", "mpilaunch_agents") else load("re").compile
    return compiled(*given, **more)


def is_put_off(name: str) -> bool:
    """Say whether a module has been put off, and nobody has needed it so far."""
    return isinstance(sys.modules.get(name), _StandIn)


def load(name: str) -> Any:
    """Return a module that perhaps was put off; whoever has imported it before finds the whole of it from now on."""
    with _loading:
        before = sys.modules.pop(name) if is_put_off(name) else None
    __import__(name)
    module = sys.modules[name]
    if before is not None:
        before.__dict__.update(module.__dict__)
    return module
