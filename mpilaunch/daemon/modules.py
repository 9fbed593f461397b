"""The second part of what travels: modules that few programs need, sent by the head when the daemon asks for them.

A daemon that runs from installed files has them all, and asks for nothing.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import zlib

import mpilaunch.daemon

TYPE_CHECKING = False  # `typing` costs milliseconds at start; type checkers take this name as true
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Answered = Callable[[dict[str, Any]], None]


def load(name: str, ask: Callable[[str, dict[str, Any], Answered], None], then: Callable[[], None]) -> None:
    """Call `then` when a module of the second part can be imported.

    Args:
        name: of the module.
        ask: asks the head (what, details, done).
    """

    def add(answer: dict[str, Any]) -> None:
        archive = _unnamed_file()
        with open(archive, "wb", closefd=False) as file:
            file.write(zlib.decompress(base64.b64decode(answer["archive"])))
        mpilaunch.daemon.__path__.append("/proc/self/fd/%d/mpilaunch/daemon" % archive)
        then()

    if importlib.util.find_spec(name) is None:
        ask("modules", {}, add)
    else:
        then()


def _unnamed_file() -> int:
    """Return a descriptor of a file that has no name, also where Python was built for a C library without memfd_create."""
    try:
        return os.memfd_create("mpilaunch")
    except AttributeError:
        import tempfile

        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
