"""Modules of the bundle, from their places in it. Travels to every node, and runs there before all else.

To look into a zip file takes Python as long as to load what it finds there. So the bundle begins with this module's own byte
code and a list of places; a Python of another version than the head's passes over both, and takes the source from the zip file.
"""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False  # `typing` costs milliseconds at start; type checkers take this name as true
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    Places = dict[str, tuple[bool, int, int]]
    """Of each module: whether it is a package, where its byte code begins, and its size."""


class BundledModules:
    """A finder and loader (PEP 451) of modules whose byte code lies in a file that stays open."""

    def __init__(self, file: int, places: Places) -> None:
        self._file, self._places = file, places

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return how to load a module, None when it is not ours."""
        if name not in self._places:
            return None
        module_spec: Any = type(sys.__spec__)  # of `importlib.machinery`, without its way there
        return module_spec(name, self, is_package=self._places[name][0])

    def create_module(self, spec: Any) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        _, begin, size = self._places[module.__name__]
        exec(marshal.loads(os.pread(self._file, size, begin)), module.__dict__)
