"""Acts just before the n-th system call of a piece of code, so that tests try a race at each point and not by chance."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any


class SystemCalls:
    """Counts the calls of functions of `os` in a `with` block, and runs functions just before some of them.

    Args:
        before: functions by the number of a call, from 1. What they call is not counted.

    Attributes:
        count: the calls so far.
    """

    def __init__(self, before: Mapping[int, Callable[[], None]]) -> None:
        self._before = before
        self.count = 0

    def __enter__(self) -> SystemCalls:
        sys.setprofile(self._profile)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__module__ == "posix":
            self.count += 1
            if self.count in self._before:
                self._before[self.count]()
