"""The TCP port by which ranks reach libpmix: that only this machine can reach it, and that no silent connection blocks it.

Every user of the node can connect to the port. libpmix serves new connections one after the other on its only thread, and waits
for what each must send first without a limit. This looks at the sockets of the helper from outside, and never reads from one.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import termios
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOK_SECONDS = 2.0
"""A connection that is being served and sends nothing between two looks, so far apart, is shut down."""


class Port:
    """What the helper's process listens on, once libpmix has started its server."""

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
        """Shut down the connections that have been silent since the last look; to be called every LOOK_SECONDS."""
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
                pass  # it has just gone
        self._silent = silent


def _sockets() -> Iterator[socket.socket]:
    """Yield a copy of each TCP socket of this process, for as long as the caller looks at it."""
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:
            continue  # the one that the list was read by, or one that libpmix has just closed
        try:
            found = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            continue
        with found:
            if found.family in (socket.AF_INET, socket.AF_INET6):
                yield found


def _listens(found: socket.socket) -> bool:
    return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _is_silent(connection: socket.socket) -> bool:
    """Tell whether libpmix may be waiting for this connection: it has blocking mode, and nothing to be read.

    libpmix sets blocking mode for the first exchange only. One that waits for its turn has sent that already.
    """
    if fcntl.fcntl(connection, fcntl.F_GETFL) & os.O_NONBLOCK:
        return False
    unread = array.array("i", [0])
    fcntl.ioctl(connection, termios.FIONREAD, unread)
    return not unread[0]
