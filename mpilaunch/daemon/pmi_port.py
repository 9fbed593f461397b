"""PMI by a port on the loopback interface, for ranks whose descriptors do not survive the way to the program.

A rank names itself by its number, which is no secret: so whoever connects must be a process of our own user, as the kernel
says. It has one line to say who it is, and is then served like the others.
"""

from __future__ import annotations

import os
import socket

TYPE_CHECKING = False  # `typing` costs milliseconds at start; type checkers take this name as true
if TYPE_CHECKING:
    from collections.abc import Callable

    from mpilaunch.daemon.poller import Poller

MOST_UNNAMED = 64
"""Connections that have not said who they are; beyond them new ones are closed."""
LONGEST_LINE = 256


class PmiPort:
    """The port of one world.

    Attributes:
        address: "127.0.0.1:port", as PMI_PORT says it.

    Args:
        size: ranks of the world, told to each.
        opened: takes (rank, connection, bytes that came after its first line); False when there is no such rank to be served.
    """

    def __init__(
        self, size: int, poller: Poller, opened: Callable[[int, socket.socket, bytes], bool]
    ) -> None:
        self._size, self._poller, self._opened = size, poller, opened
        self._unnamed: dict[socket.socket, bytes] = {}
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._listener.setblocking(False)
        self.address = "%s:%d" % self._listener.getsockname()
        poller.watch(self._listener, self._accept)

    def close(self) -> None:
        """Take no more connections."""
        for connection in list(self._unnamed):
            self._drop(connection)
        self._poller.forget(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it has gone again
        if len(self._unnamed) >= MOST_UNNAMED or not is_ours(connection):
            connection.close()
            return
        self._unnamed[connection] = b""
        self._poller.watch(connection, lambda: self._read(connection))

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(LONGEST_LINE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        line, newline, rest = (self._unnamed[connection] + data).partition(b"\n")
        if not data or len(line) > LONGEST_LINE:
            self._drop(connection)
        elif not newline:
            self._unnamed[connection] = line
        else:
            self._name(connection, line, rest)

    def _name(self, connection: socket.socket, line: bytes, rest: bytes) -> None:
        command, _, rank = line.partition(b" pmiid=")
        if command != b"cmd=initack" or not rank.isdigit() or len(rank) > 9:
            self._drop(connection)
            return
        del self._unnamed[connection]
        self._poller.forget(connection)
        answer = "cmd=initack rc=0\ncmd=set size=%d\ncmd=set rank=%d\ncmd=set debug=0\n" % (self._size, int(rank))
        try:
            connection.send(answer.encode("ascii"), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            connection.close()
            return
        if not self._opened(int(rank), connection, rest):
            connection.close()

    def _drop(self, connection: socket.socket) -> None:
        del self._unnamed[connection]
        self._poller.forget(connection)
        connection.close()


def is_ours(connection: socket.socket) -> bool:
    """Say whether the other end of a connection within this machine belongs to our own user (/proc/net/tcp, proc(5))."""
    try:
        wanted = [_hexadecimal(*connection.getpeername()), _hexadecimal(*connection.getsockname())]
        with open("/proc/net/tcp", encoding="utf-8") as file:
            for line in file:
                words = line.split()
                if words[1:3] == wanted:
                    return words[7] == str(os.getuid())
    except OSError:
        pass
    return False


def _hexadecimal(address: str, port: int) -> str:
    """Return an address as /proc/net/tcp writes it: the four bytes as one number of this machine."""
    import sys

    number = int.from_bytes(socket.inet_aton(address), sys.byteorder)
    return "%08X:%04X" % (number, port)
