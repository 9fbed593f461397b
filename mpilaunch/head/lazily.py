"""What a launch imports and does not need: see `later`. These tables say what is asked of such modules as others are loaded."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the C half of `signal`
import sys
from _collections_abc import Awaitable  # `collections` has more, and is quicker to load a little later

from mpilaunch.later import is_put_off, load, put_off, put_off_re

TYPE_CHECKING = False  # `typing` is one of these modules; type checkers take this name as true
if TYPE_CHECKING:
    from typing import Any


class _Kind:
    """Stands for what is only written in annotations, or is a base class without methods."""

    def __class_getitem__(cls, item: Any) -> Any:
        return cls


class _Logger:
    """A logger that is loaded with its module. Before that nobody can have asked to see what it is told for debugging."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(load("logging").getLogger(self._name), attribute)

    def debug(self, *told: Any, **more: Any) -> None:
        if not is_put_off("logging"):
            self.__getattr__("debug")(*told, **more)


TYPING = {
    "__path__": (),  # every `from typing import` asks for it
    **dict.fromkeys(("Any", "NoReturn", "Optional", "Protocol", "TextIO", "Type"), _Kind),
    "TYPE_CHECKING": False,
    "cast": lambda kind, value: value,
    "final": lambda kind: kind,
}
FOR_FEW = ("shlex", "mpilaunch.checkpoints", "mpilaunch.envfile", "mpilaunch.notenough", "mpilaunch.slotmap")
"""What every launch imports and few use; whoever imports one of these writes `module.name`, for a name alone would load it."""
FOR_ASYNCIO: dict[str, dict[str, Any]] = {
    "inspect": {"isawaitable": lambda value: isinstance(value, Awaitable)},
    "traceback": {"extract_stack": lambda *given: load("traceback").extract_stack(*given)},
    "linecache": {},
    "subprocess": {"__path__": (), "PIPE": -1, "STDOUT": -2, "DEVNULL": -3},
    "logging": {"DEBUG": 10, "WARNING": 30, "getLogger": _Logger, "StreamHandler": _Kind},
    "asyncio.sslproto": {},
    "asyncio.staggered": {},
}


def put_off_what_everyone_imports() -> None:
    """Do it before anything else is loaded."""
    put_off("typing", TYPING)
    put_off_re()
    for name in FOR_FEW:
        put_off(name, {})
    put_off("signal", {"__path__": (), **vars(_signal)})


def load_asyncio(*, tls: bool) -> None:
    """Import asyncio; without `tls`, no connection that it makes in this process can have TLS."""
    for name, known in FOR_ASYNCIO.items():
        put_off(name, known)
    without = not tls and "ssl" not in sys.modules
    if without:
        sys.modules["ssl"] = None  # type: ignore[assignment]  # "it is not there"
    try:
        import asyncio  # noqa: F401
    finally:
        if without:
            del sys.modules["ssl"]
