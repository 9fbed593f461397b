"""The PMI connections of this node's ranks: a socket pair at a fixed descriptor of the rank, or one made to a port."""

from __future__ import annotations

import fcntl
import socket

from mpilaunch.daemon.mpi.pmi import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpilaunch.daemon.mpi.pmi import PmiWorld
    from mpilaunch.daemon.mpi.pmi1 import Pmi1
    from mpilaunch.daemon.mpi.pmi_port import PmiPort
    from mpilaunch.daemon.poller import Poller

READ_SIZE = 64 << 10


class PmiConnections:
    """The connections of one node. Ranks have their number in the job.

    Args:
        find: returns the world of a rank and its number in it.
        set_timer: (name, seconds, action) of the loop.
        note: tells the user something.
    """

    def __init__(
        self,
        poller: Poller,
        find: Callable[[int], tuple[PmiWorld, int]],
        set_timer: Callable[[str, float, Callable[[], None]], None],
        note: Callable[[str], None],
    ) -> None:
        self._poller, self._find, self._set_timer, self._note = poller, find, set_timer, note
        self._connections: dict[int, socket.socket] = {}
        self._protocols: dict[int, Pmi1] = {}
        self._ports: dict[str, PmiPort] = {}

    def listen(self, description: dict[str, Any]) -> None:
        """Open a port for the ranks of a world (`--pmi-port`)."""
        from mpilaunch.daemon.mpi.pmi_port import PmiPort

        name, first = description["world"], description["first"]
        self._ports[name] = PmiPort(
            name,
            description["size"],
            self._poller,
            self._set_timer,
            lambda number, connection, data: self._opened_by_port(first + number, connection, data),
            self._note,
        )

    def environment(self, rank: int) -> dict[str, str]:
        """Return the variables with which a rank finds the port of its world, if there is one."""
        world, number = self._find(rank)
        port = self._ports.get(world.name)
        return {} if port is None else {"PMI_PORT": port.address, "PMI_ID": port.expect(number)}

    def open(self, rank: int, descriptor: int) -> int:
        """Make the connection of a rank; return the descriptor of its end, which the caller closes.

        The number is above `descriptor`, under which the rank gets it: a copy onto itself would be closed at exec.
        """
        ours, theirs = socket.socketpair()
        self._serve(rank, ours)
        number = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, descriptor + 1)
        theirs.close()
        return int(number)

    def end(self, rank: int) -> None:
        """Close the connection of a rank that has exited."""
        world, number = self._find(rank)
        if world.name in self._ports:
            self._ports[world.name].refuse(number)
        if rank in self._connections:
            self._read_ready(rank)  # perhaps MPI_Abort; once, since a child of it may write for ever
            self._close(rank)

    def close_ports(self) -> None:
        for port in self._ports.values():
            port.close()
        self._ports.clear()

    def _opened_by_port(self, rank: int, connection: socket.socket, data: bytes) -> None:
        """Serve a rank that has connected by its world's port, and sent `data` after its first line."""
        self._serve(rank, connection)
        self._receive(rank, data)

    def _serve(self, rank: int, connection: socket.socket) -> None:
        self._connections[rank] = connection
        self._poller.watch(connection, lambda: self._read_ready(rank))

    def _read_ready(self, rank: int) -> None:
        try:
            data = self._connections[rank].recv(READ_SIZE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._receive(rank, data)
        else:
            self._close(rank)

    def _receive(self, rank: int, data: bytes) -> None:
        if rank not in self._protocols:
            from mpilaunch.daemon.mpi.pmi1 import Pmi1  # most programs send nothing

            world, number = self._find(rank)
            self._protocols[rank] = Pmi1(world, number, lambda data: self._answer(rank, data))
        try:
            self._protocols[rank].receive(data)
        except ProtocolError as error:
            self._note("rank %d broke the PMI protocol and was cut off from it: %s" % (rank, error))
            self._close(rank)

    def _answer(self, rank: int, data: bytes) -> None:
        # Answers are short, and a rank waits for each: one that does not read them is cut off.
        if rank not in self._connections:
            return  # cut off, or ended
        try:
            sent = self._connections[rank].send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            sent = 0
        if sent < len(data):
            self._close(rank)

    def _close(self, rank: int) -> None:
        if rank in self._connections:
            ours = self._connections.pop(rank)
            self._protocols.pop(rank, None)
            self._poller.forget(ours)
            ours.close()
