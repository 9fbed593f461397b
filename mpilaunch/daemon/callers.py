"""Connections of callers that are not yet known: accepted from a listening socket, bounded in number and in time.

This module must never wait for a caller without a deadline, and never hold more connections than its limit.
"""

from __future__ import annotations

import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mpilaunch.daemon.poller import Poller

PAUSE_SECONDS = 0.5
"""Pause after a failed accept, as when no descriptor is free."""


class Callers:
    """The callers of one listening socket.

    Args:
        name: of the timers.
        most: connections held; one more, and the oldest is closed.
        seconds: deadline of a connection, until it is dropped or released.
        size: bytes read at a time.
        admits: returns whether a new connection is held at all.
        received: called with a connection and all bytes that it has sent, whenever it has sent more.
    """

    def __init__(
        self,
        listener: socket.socket,
        poller: Poller,
        set_timer: Callable[[str, float, Callable[[], None]], None],
        name: str,
        most: int,
        seconds: float,
        size: int,
        admits: Callable[[socket.socket], bool],
        received: Callable[[socket.socket, bytes], None],
    ) -> None:
        self._poller, self._set_timer, self._name = poller, set_timer, name
        self._most, self._seconds, self._size, self._admits, self._received = most, seconds, size, admits, received
        self._held: dict[socket.socket, bytes] = {}
        self._listener: socket.socket | None = listener
        listener.setblocking(False)
        poller.watch(listener, self._accept)

    def drop(self, connection: socket.socket) -> None:
        """Close a connection if it is still held."""
        if connection in self._held:
            self.release(connection)
            connection.close()

    def release(self, connection: socket.socket) -> None:
        """Stop holding a connection, without closing it."""
        del self._held[connection]
        self._poller.forget(connection)

    def close(self) -> None:
        """Close the listening socket and all connections held; idempotent."""
        for connection in list(self._held):
            self.drop(connection)
        if self._listener is not None:
            if self._listener in self._poller:
                self._poller.forget(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # it has gone again
        except OSError:
            # Perhaps no descriptor is free. The connection stays queued, so the listener would be ready again at once.
            self._poller.forget(self._listener)
            self._set_timer("callers of " + self._name, PAUSE_SECONDS, self._resume)
            return
        if not self._admits(connection):
            connection.close()
            return
        self._held[connection] = b""
        self._poller.watch(connection, lambda: self._read(connection))
        self._read(connection)
        if connection in self._held:
            # By the number, so that a connection that ends early leaves its timer to the next.
            timer = "caller %d of %s" % (connection.fileno(), self._name)
            self._set_timer(timer, self._seconds, lambda: self.drop(connection))
        if len(self._held) > self._most:
            self.drop(next(iter(self._held)))

    def _resume(self) -> None:
        if self._listener is not None:
            self._poller.watch(self._listener, self._accept)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(self._size, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._held[connection] += data
            self._received(connection, self._held[connection])
        else:
            self.drop(connection)
