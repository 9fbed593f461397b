"""The CPU time of a call, without that of Python's garbage collector: this walks all that a long run of pytest holds."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Let the garbage collector rest."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def cpu_seconds(function: Callable[..., object], *arguments: object) -> float:
    """Return the CPU time of a call, in seconds."""
    with without_collector():
        began = time.process_time()
        function(*arguments)
        return time.process_time() - began
