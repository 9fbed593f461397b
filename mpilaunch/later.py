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


class _StandIn(type(sys)):  # type: ignore[misc]
    """Stands for a module that is not loaded (PEP 562 does not tell it from one that has a `__getattr__` of its own)."""

    def __getattr__(self, attribute: str) -> Any:
        return getattr(load(self.__name__), attribute)


def put_off(name: str, known: Mapping[str, Any]) -> None:
    """Let a module be loaded when it is first asked for anything but what is known of it.

    `importlib.util.LazyLoader` is of no use: the next `import` looks at `__spec__`, and that loads it.
    """
    if name not in sys.modules:
        sys.modules[name] = stand_in = _StandIn(name)
        stand_in.__dict__.update({**known, "__name__": name})


def is_put_off(name: str) -> bool:
    """Say whether a module has been put off, and nobody has needed it so far."""
    return isinstance(sys.modules.get(name), _StandIn)


def load(name: str) -> Any:
    """Return a module that perhaps was put off; whoever has imported it before finds the whole of it from now on."""
    stand_in = sys.modules.pop(name) if is_put_off(name) else None
    __import__(name)
    module = sys.modules[name]
    if stand_in is not None:
        stand_in.__dict__.update(module.__dict__)
    return module
