"""A selector of the standard library with one callback for each descriptor.

It blocks in `run` only, and never calls the callback of a descriptor that was forgotten earlier in the same turn.
"""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING, Protocol, Union

if TYPE_CHECKING:
    from collections.abc import Callable


class File(Protocol):
    """A socket, a pipe or another poller."""

    def fileno(self) -> int:
        """Return the descriptor."""


class Poller:
    """Descriptors and their callbacks. A poller can watch another, which is ready when one of its descriptors is."""

    def __init__(self) -> None:
        self._selector = selectors.EpollSelector()

    def __contains__(self, file: Union[int, File]) -> bool:
        return file in self._selector.get_map()

    def fileno(self) -> int:
        """Return the descriptor of the selector."""
        return self._selector.fileno()

    def watch(self, file: Union[int, File], ready: Callable[[], None], *, reading: bool = True, writing: bool = False) -> None:
        """Call `ready` whenever `file` can be read, or written to; raises OSError for a regular file."""
        events = (selectors.EVENT_READ if reading else 0) | (selectors.EVENT_WRITE if writing else 0)
        if file in self:
            self._selector.modify(file, events, ready)
        else:
            self._selector.register(file, events, ready)

    def forget(self, file: Union[int, File]) -> None:
        """Stop watching `file`; raises KeyError when it is not watched."""
        self._selector.unregister(file)

    def run(self, seconds: float | None) -> None:
        """Wait for at most this time (None: no limit), then call the callbacks of the descriptors that are ready."""
        watched = self._selector.get_map()
        for key, _ in self._selector.select(seconds if seconds is None else max(0.0, seconds)):
            # An earlier callback may have forgotten it, and a new file may have the same number.
            if watched.get(key.fd) is key:
                key.data()
