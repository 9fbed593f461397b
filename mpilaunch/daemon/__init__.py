"""The daemon on a node: starts the ranks, carries their output and input, reaps and ends them. It travels to every node.

Standard library only, Python 3.8; it imports nothing of ours but `mpilaunch.daemon`, `mpilaunch.wire` and `mpilaunch.later`.
What is done here is done before any of its modules is loaded.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the C half of `signal`
import gc

from mpilaunch.later import load, put_off

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Names for the type checker only: loading typing would cost every node milliseconds.
    from typing import Any


class _Pattern:
    """A pattern that is compiled when it is first used."""

    def __init__(self, *given: Any) -> None:
        self._given = given

    def __getattr__(self, method: str) -> Any:
        return lambda *given: getattr(load("re").compile(*self._given), method)(*given)


gc.disable()  # loading makes hardly any garbage; `main` goes on with it
# Its other half only makes members of an enumeration out of numbers.
put_off("signal", vars(_signal))
# json compiles patterns, and has no use for them where its C half is there.
put_off("re", {"compile": _Pattern, "VERBOSE": 64, "MULTILINE": 8, "DOTALL": 16})
