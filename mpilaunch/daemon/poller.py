"""What a loop of the daemon waits for: descriptors, each with a callback (a selector of the standard library), and deadlines.

It blocks in `Poller.run` only, and never calls the callback of a descriptor that was forgotten earlier in the same turn.
"""

from __future__ import annotations

import selectors
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Union

    File = Union[int, socket.socket, "Poller"]

LONGEST_SLEEP = 86400.0
"""Seconds; the kernel limits a wait for events to some weeks."""


class Poller:
    """Descriptors and their callbacks. A poller can watch another, which is ready when one of its descriptors is."""

    def __init__(self) -> None:
        self._selector = selectors.EpollSelector()
        self.fileno = self._selector.fileno

    def __contains__(self, file: File) -> bool:
        return file in self._selector.get_map()

    def watch(self, file: File, ready: Callable[[], None], *, reading: bool = True, writing: bool = False) -> None:
        """Call `ready` whenever `file` can be read, or written to; raises OSError for a regular file."""
        events = (selectors.EVENT_READ if reading else 0) | (selectors.EVENT_WRITE if writing else 0)
        (self._selector.modify if file in self else self._selector.register)(file, events, ready)

    def watch_writing(self, file: File, ready: Callable[[], None], wanted: bool) -> None:
        """Call `ready` whenever `file`, which is not read here, can be written to, or stop that if it is no longer wanted."""
        if wanted and file not in self:
            self.watch(file, ready, reading=False, writing=True)
        elif not wanted and file in self:
            self.forget(file)

    def forget(self, file: File) -> None:
        """Stop watching `file`; raises KeyError when it is not watched."""
        self._selector.unregister(file)

    def run(self, seconds: float | None) -> None:
        """Wait for at most this time (None: no limit), then call the callbacks of the descriptors that are ready."""
        watched = self._selector.get_map()
        for key, _ in self._selector.select(seconds if seconds is None else max(0.0, seconds)):
            # An earlier callback may have forgotten it, and a new file may have the same number.
            if watched.get(key.fd) is key:
                key.data()


class Timers:
    """Named deadlines on the monotonic clock; setting one again moves it."""

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
