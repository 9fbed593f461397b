"""Named deadlines on the monotonic clock; setting one again moves it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


LONGEST_SLEEP = 86400.0
"""Seconds; the kernel limits a wait for events to some weeks."""


class Timers:
    """Deadlines of one loop."""

    def __init__(self) -> None:
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._timers

    def set(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        """Call an action once, after this time."""
        self._timers[name] = (time.monotonic() + seconds, action)

    def drop(self, name: str) -> None:
        """Cancel a deadline if it is set."""
        self._timers.pop(name, None)

    def seconds_left(self) -> float | None:
        """Return the seconds until the next deadline, at most LONGEST_SLEEP; None when there is none."""
        if not self._timers:
            return None
        return min(LONGEST_SLEEP, max(0.0, min(when for when, _ in self._timers.values()) - time.monotonic()))

    def run(self) -> None:
        """Call the actions whose deadline has passed."""
        now = time.monotonic()
        for name, (when, action) in list(self._timers.items()):
            if when <= now and self._timers.get(name) == (when, action):
                del self._timers[name]
                action()
