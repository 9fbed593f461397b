"""Modules that are loaded when somebody needs them, and not when somebody imports them. Travels to every node.

A launch and a daemon import much of the standard library for the sake of a name in an annotation, a base class or a message
that is never said; loading that would be a third of their time.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` is one of these modules; type checkers take this name as true
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def put_off(name: str, known: Mapping[str, Any]) -> None:
    """Let a module be loaded when it is first asked for anything but what is known of it (PEP 562).

    `importlib.util.LazyLoader` is of no use: the next `import` looks at `__spec__`, and that loads it.
    """
    if name not in sys.modules:
        stand_in = type(sys)(name)
        stand_in.__dict__.update(known, __getattr__=lambda attribute: getattr(load(name), attribute))
        sys.modules[name] = stand_in


def is_put_off(name: str) -> bool:
    """Say whether a module has been put off, and nobody has needed it so far."""
    return name in sys.modules and "__getattr__" in sys.modules[name].__dict__


def load(name: str) -> Any:
    """Return a module that perhaps was put off; whoever has imported it before finds the whole of it from now on."""
    stand_in = sys.modules.pop(name) if is_put_off(name) else None
    __import__(name)
    module = sys.modules[name]
    if stand_in is not None:
        del stand_in.__dict__["__getattr__"]
        stand_in.__dict__.update(module.__dict__)
    return module
