"""The TCP port of libpmix: checks that only this machine can reach it, and ends silent connections that block it.

Every user of the node can connect to the port. libpmix serves new connections one after the other on its only thread, and waits
for their first message without a limit. This module only inspects the sockets of the helper, and never reads from them.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LOOK_SECONDS = 2.0
"""Interval of checks. A connection that is served and silent at two checks is shut down."""


class Port:
    """The addresses on which the helper's process listens, once libpmix has started its server."""

    def __init__(self) -> None:
        self._listening = {listener.getsockname()[:2] for listener in _sockets() if _listens(listener)}
        self._silent: set[int] = set()

    def open_to(self) -> str:
        """Return an address by which other machines can connect, "" when there is none."""
        for host, port in self._listening:
            if not host.startswith("127.") and host != "::1":
                return "%s port %d" % (host, port)
        return ""

    def drop_silent(self) -> None:
        """Shut down connections that have been silent since the last check; to be called every LOOK_SECONDS."""
        silent = set()
        for connection in _sockets():
            if _listens(connection) or connection.getsockname()[:2] not in self._listening or not _is_silent(connection):
                continue
            number = os.fstat(connection.fileno()).st_ino
            if number not in self._silent:
                silent.add(number)
                continue
            try:
                connection.shutdown(socket.SHUT_RDWR)  # libpmix reads end of file
            except OSError:
                pass  # it has just ended
        self._silent = silent


def _sockets() -> Iterator[socket.socket]:
    """Yield a copy of each TCP socket of this process, closed when the next is yielded."""
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:
            continue  # the descriptor of the listing, or one that libpmix has just closed
        try:
            candidate = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            continue
        with candidate:
            if candidate.family in (socket.AF_INET, socket.AF_INET6):
                yield candidate


def _listens(candidate: socket.socket) -> bool:
    return bool(candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _is_silent(connection: socket.socket) -> bool:
    """Return whether libpmix may be waiting for this connection: it is in blocking mode and has nothing to read.

    libpmix sets blocking mode for the first exchange only; a queued connection has sent its part of that already.
    """
    if fcntl.fcntl(connection, fcntl.F_GETFL) & os.O_NONBLOCK:
        return False
    unread = array.array("i", [0])
    fcntl.ioctl(connection, termios.FIONREAD, unread)
    return not unread[0]
