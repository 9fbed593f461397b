"""Which descriptors are ready, and what is done then: epoll(7) with a callback for each descriptor.

`selectors` has this too, and what it imports is a tenth of all that a daemon loads.
"""

from __future__ import annotations

import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Names for the type checker only: loading typing would cost every node milliseconds.
    from collections.abc import Callable
    from typing import Protocol

    class File(Protocol):
        """A socket, a pipe or another poller."""

        def fileno(self) -> int: ...


class Poller:
    """Descriptors, and what is called when they are ready. Another can watch its own: then one of these is ready."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def __contains__(self, file: int | File) -> bool:
        return _descriptor(file) in self._callbacks

    def fileno(self) -> int:
        """Return our own descriptor."""
        return self._epoll.fileno()

    def watch(self, file: int | File, ready: Callable[[], None], *, reading: bool = True, writing: bool = False) -> None:
        """From now on, call `ready` when there are bytes or an end to read, or room to write; raises OSError for a file."""
        descriptor = _descriptor(file)
        events = (select.EPOLLIN if reading else 0) | (select.EPOLLOUT if writing else 0)
        if descriptor in self._callbacks:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)
        self._callbacks[descriptor] = ready

    def forget(self, file: int | File) -> None:
        """Call nothing for it any more; raises KeyError or OSError for one that is closed, or was not watched."""
        descriptor = _descriptor(file)
        del self._callbacks[descriptor]
        self._epoll.unregister(descriptor)

    def run(self, seconds: float | None) -> None:
        """Wait so long at most, None for ever, and call what is ready; nothing is called that another has forgotten by then."""
        polled = self._epoll.poll(None if seconds is None else max(0.0, seconds))
        # Another descriptor may get the number of one that is closed meanwhile.
        ready = [(descriptor, self._callbacks.get(descriptor)) for descriptor, _ in polled]
        for descriptor, callback in ready:
            if callback is not None and self._callbacks.get(descriptor) is callback:
                callback()


def _descriptor(file: int | File) -> int:
    return file if isinstance(file, int) else file.fileno()
