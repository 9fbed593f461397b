"""PMI by a port on the loopback interface, for ranks whose program is started without their descriptors.

Every user of the machine can connect to the port. A connection is served only if both conditions hold:

- Its other end is a live socket of the same user, by /proc/net/tcp. A closed socket has no owner there (its row shows uid 0
  and inode 0), so such a row never counts.
- Its first line has the PMI_ID of a started rank that has not connected before. The ID is a random number in the rank's
  environment. Libraries read it by atoi(3) and send it as `%d`, so it has only 31 bits; therefore the port closes after
  MOST_WRONG wrong IDs.

This module must never serve a connection on one of the conditions alone, and never wait for a connection without a deadline.
"""

from __future__ import annotations

import os
import socket
import sys

from mpilaunch.daemon.callers import Callers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mpilaunch.daemon.poller import Poller

MOST_UNNAMED = 64
"""Connections without a first line; one more, and the oldest is closed."""
FIRST_LINE_SECONDS = 5.0
"""Deadline of the first line; a library sends it at once."""
MOST_WRONG = 32
"""Wrong IDs until the port closes: with 1,000 ranks on the node a guess succeeds with a chance below 1 in 60,000."""
LONGEST_LINE = 256
ID_BITS = 31
ESTABLISHED = "01"
"""State of an open connection in /proc/net/tcp."""


class PmiPort:
    """The port of one world of `size` ranks; `address` is the value of PMI_PORT.

    Args:
        opened: called with (number of the rank in its world, connection, bytes after its first line).
        note: sends a text to the user.
    """

    def __init__(
        self,
        name: str,
        size: int,
        poller: Poller,
        set_timer: Callable[[str, float, Callable[[], None]], None],
        opened: Callable[[int, socket.socket, bytes], None],
        note: Callable[[str], None],
    ) -> None:
        self._name, self._size, self._opened, self._note = name, size, opened, note
        self._expected: dict[int, int] = {}
        self._served: set[int] = set()
        self._wrong = 0
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = "%s:%d" % listener.getsockname()
        self._callers = Callers(
            listener,
            poller,
            set_timer,
            "pmi port " + name,
            MOST_UNNAMED,
            FIRST_LINE_SECONDS,
            LONGEST_LINE,
            lambda connection: live_owner(connection) == os.getuid(),
            self._received,
        )

    def expect(self, rank: int) -> str:
        """Expect a rank that is about to start; return its PMI_ID, which is valid for one connection."""
        self.refuse(rank)
        number = 0
        while not number or number in self._expected or number in self._served:
            number = int.from_bytes(os.urandom(8), "little") >> 64 - ID_BITS
        self._expected[number] = rank
        return str(number)

    def refuse(self, rank: int) -> None:
        """Refuse connections of an ended rank."""
        for number in [number for number, known in self._expected.items() if known == rank]:
            del self._expected[number]
            self._served.add(number)

    def close(self) -> None:
        self._callers.close()

    # Connections without a name

    def _received(self, connection: socket.socket, data: bytes) -> None:
        line, newline, rest = data.partition(b"\n")
        if len(line) > LONGEST_LINE:
            self._callers.drop(connection)
        elif newline:
            self._take_first_line(connection, line, rest)

    def _take_first_line(self, connection: socket.socket, line: bytes, rest: bytes) -> None:
        command, _, digits = line.partition(b" pmiid=")
        if command != b"cmd=initack" or not digits.isdigit() or len(digits) > 10:
            self._callers.drop(connection)
            return
        # The time of a look-up by number does not depend on how similar a wrong number is.
        number = int(digits)
        rank = self._expected.pop(number, None)
        if rank is None:
            self._callers.drop(connection)
            if number not in self._served:
                self._count_wrong()
            return
        self._served.add(number)
        self._callers.release(connection)
        answer = "cmd=initack rc=0\ncmd=set size=%d\ncmd=set rank=%d\ncmd=set debug=0\n" % (self._size, rank)
        try:
            connection.send(answer.encode("ascii"), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            connection.close()
            return
        self._opened(rank, connection, rest)

    def _count_wrong(self) -> None:
        """Report the first wrong ID; close the port after too many."""
        self._wrong += 1
        if self._wrong == 1:
            self._note("a connection to the PMI port of world %s gave a wrong PMI_ID, and was closed" % self._name)
        elif self._wrong == MOST_WRONG:
            self._note("the PMI port of world %s has had %d wrong PMI_IDs, and is closed" % (self._name, MOST_WRONG))
            self.close()


def live_owner(connection: socket.socket) -> int | None:
    """Return the uid of the other end of a connection within this machine, None if that end is closed or not found.

    The kernel reads uid and inode of a row one after the other; if the other end is closed between the two, the row shows
    uid 0 with an inode. A second row that still has its inode proves the uid of the first.
    """
    try:
        first, second = _live_row(connection), _live_row(connection)
    except (OSError, ValueError, IndexError):
        return None
    return None if first is None or second is None else int(first[7])


def _live_row(connection: socket.socket) -> list[str] | None:
    """Return the row of the other end in /proc/net/tcp (proc(5)), None unless it is open and belongs to a process."""
    ends = [_hexadecimal(*connection.getpeername()), _hexadecimal(*connection.getsockname())]
    with open("/proc/net/tcp", encoding="ascii", errors="replace") as file:
        for line in file:
            words = line.split()
            if words[1:3] == ends:
                return words if words[3] == ESTABLISHED and words[9] != "0" else None
    return None


def _hexadecimal(address: str, port: int) -> str:
    """Return an address in the notation of /proc/net/tcp: four bytes as one number in native order."""
    number = int.from_bytes(socket.inet_aton(address), sys.byteorder)
    return "%08X:%04X" % (number, port)
