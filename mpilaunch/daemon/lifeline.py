"""The daemon's side of the wire: two descriptors, read and written without ever waiting, and the session in the middle.

Once the head is lost nothing is read or written any more; what is to be said goes nowhere.
"""

from __future__ import annotations

import os
import selectors
import time

from mpilaunch.wire.session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Names for the type checker only: loading typing would cost every node milliseconds.
    from collections.abc import Callable
    from typing import Any

READ_SIZE = 256 << 10
WRITE_SIZE = 1 << 20


class Lifeline:
    """The wire.

    Attributes:
        session: what is said and heard.
        lost: the other side is gone.
        backlog: bytes that wait for the wire.

    Args:
        wire_in, wire_out: descriptors; `wire_out` does not block.
        readable: called by the selector when there is something to receive.
    """

    def __init__(
        self, wire_in: int, wire_out: int, selector: selectors.BaseSelector, readable: Callable[[], None]
    ) -> None:
        self.session = Session()
        self.lost = False
        self._wire_in, self._wire_out, self._selector = wire_in, wire_out, selector
        self._outgoing = bytearray()
        self._waiting = False
        selector.register(wire_in, selectors.EVENT_READ, readable)

    @property
    def backlog(self) -> int:
        return len(self._outgoing)

    def receive(self) -> list[tuple[int, int, Any]] | None:
        """Return what has come, None at the end of the wire; raises WireError."""
        try:
            data = os.read(self._wire_in, READ_SIZE)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return self.session.receive_data(data, time.monotonic()) if data else None

    def flush(self) -> bool:
        """Write what the wire takes now; False when it has broken."""
        data = self.session.data_to_send()
        if self.lost:
            return True
        self._outgoing += data
        try:
            while self._outgoing:
                with memoryview(self._outgoing) as view:
                    written = os.write(self._wire_out, view[:WRITE_SIZE])
                del self._outgoing[:written]
        except BlockingIOError:
            pass
        except OSError:
            return False
        self._wait_to_write(bool(self._outgoing))
        return True

    def lose(self) -> None:
        """The other side is gone."""
        self._wait_to_write(False)
        self._selector.unregister(self._wire_in)
        self.lost = True

    def _wait_to_write(self, waiting: bool) -> None:
        if waiting == self._waiting:
            return
        self._waiting = waiting
        if waiting:
            self._selector.register(self._wire_out, selectors.EVENT_WRITE, lambda: None)
        else:
            self._selector.unregister(self._wire_out)
