"""Load asyncio without what it loads for others, which is a third of its time.

It wants `inspect` at hand, and a launch never looks into that: it is loaded when somebody does. TLS can only be left out whole,
as on a Python that has none.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any


def load_asyncio(*, tls: bool) -> None:
    """Import asyncio; without `tls`, no connection that it makes in this process can have TLS."""
    if "inspect" not in sys.modules:
        put_off("inspect")
    without = not tls and "ssl" not in sys.modules
    if without:
        sys.modules["ssl"] = None  # type: ignore[assignment]  # "it is not there"
    try:
        import asyncio  # noqa: F401
    finally:
        if without:
            del sys.modules["ssl"]


def put_off(name: str) -> None:
    """Let a module of the standard library be loaded when it is first asked for something (PEP 562)."""
    # LazyLoader is of no use: the next `import` looks at `__spec__`, and that loads it.
    spec = PathFinder.find_spec(name)
    if spec is None or spec.loader is None:
        return
    module, load = module_from_spec(spec), spec.loader.exec_module

    def get(attribute: str) -> Any:
        del module.__dict__["__getattr__"]
        load(module)
        return getattr(module, attribute)

    module.__dict__["__getattr__"] = get
    sys.modules[name] = module
