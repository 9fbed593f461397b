"""MPI wire-up on the node: a socket pair for each rank, with the PMI server behind it, in the daemon's loop.

A rank finds its end at a fixed descriptor. Programs that are not MPI never look at it.
"""

from __future__ import annotations

import fcntl
import selectors
import socket

from mpilaunch.daemon.pmi1 import Pmi1Server, ProtocolError

TYPE_CHECKING = False  # `typing` costs milliseconds at start; type checkers take this name as true
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

READ_SIZE = 64 << 10


class WireUp:
    """The PMI connections of the ranks of one node.

    Attributes:
        descriptor: the number under which a rank finds its end.

    Args:
        plan: the `prepare` message.
        selector: the loop's.
        fence: tells the head that all living ranks of this node are in the barrier, how many they are, and what they put.
        abort: ends a rank that called MPI_Abort with this code.
        complain: tells the user of a rank that broke the protocol.
    """

    def __init__(
        self,
        plan: dict[str, Any],
        selector: selectors.BaseSelector,
        fence: Callable[[int, dict[str, str]], None],
        abort: Callable[[int, int], None],
        complain: Callable[[str], None],
    ) -> None:
        self._selector = selector
        self._complain = complain
        self._sockets: dict[int, socket.socket] = {}
        ranks = [spec["rank"] for spec in plan["ranks"]]
        mpi = plan["mpi"]
        self.descriptor: int = mpi["descriptor"]
        self._server = Pmi1Server(
            plan["job"], mpi["size"], mpi["universe_size"], ranks, mpi["mapping"], self._answer, fence, abort
        )

    def open_rank(self, rank: int) -> int:
        """Make the connection of a rank; return the descriptor that becomes its end, which the caller closes."""
        ours, theirs = socket.socketpair()
        self._sockets[rank] = ours
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._read_ready(rank))
        # High, so that it is never the number under which the rank gets it: a copy onto itself would be closed at exec.
        descriptor = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, self.descriptor + 1)
        theirs.close()
        return descriptor

    def close_rank(self, rank: int) -> str:
        """A rank has exited: close its connection; return how far it came (`pmi1`)."""
        self._read_ready(rank)  # its last words, MPI_Abort perhaps; once, for a child of its may go on writing for ever
        self._close(rank)
        return self._server.ended(rank)

    def release(self, pairs: dict[str, str]) -> None:
        """Every node is in the barrier."""
        self._server.release(pairs)

    def _read_ready(self, rank: int) -> None:
        """Serve what a rank has asked."""
        connection = self._sockets.get(rank)
        if connection is None:
            return  # closed by an event of the same turn of the loop
        try:
            data = connection.recv(READ_SIZE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(rank)
            return
        try:
            self._server.receive(rank, data)
        except ProtocolError as error:
            self._complain("rank %d broke the PMI protocol and was cut off from it: %s" % (rank, error))
            self._close(rank)

    def _answer(self, rank: int, data: bytes) -> None:
        # Answers are short, and a rank waits for each: one that lets them pile up is one that has broken off.
        try:
            self._sockets[rank].send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except (KeyError, OSError):
            self._close(rank)

    def _close(self, rank: int) -> None:
        connection = self._sockets.pop(rank, None)
        if connection is not None:
            self._selector.unregister(connection)
            connection.close()
