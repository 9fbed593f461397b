"""Where a head comes back to whose channel was lost: a Unix socket in a private directory.

A process that the head has started on the node connects, and passes on what head and daemon say to each other: each proves
that it knows the secret of the job, which has travelled over the first channel only (`wire.challenge`). Then the process hands
over its own stdin, stdout and stderr, and those become the wire. Before the proof nothing else is read from a connection, no
descriptor neither; the channel in use stays until the new one has named what the head has received. Each step has a deadline.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from typing import TYPE_CHECKING

from mpilaunch.wire.challenge import ANSWER_SIZE, Listener
from mpilaunch.wire.frames import WireError
from mpilaunch.wire.resume import RESUME_SIZE, resume_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpilaunch.daemon.poller import Poller
    from mpilaunch.daemon.private_directory import PrivateDirectory
    from mpilaunch.daemon.timers import Timers

SOCKET_NAME = "attach"
ATTACH_SECONDS = 10.0
"""Seconds that a connection has for all that it must say; then it is closed."""
MOST_PENDING = 8
"""Connections that may be on their way; with one more, the oldest is closed."""
_PEER = struct.Struct("3i")
_DESCRIPTOR = struct.Struct("i")


class Newcomer:
    """A connection that may become the wire.

    Attributes:
        wire_in, wire_out, stderr: the descriptors that it has handed over, -1 before.
        received: bytes of frames that the head has received.
        waits_on: what it is read from now: the connection, or `wire_in`.
    """

    def __init__(self, connection: socket.socket, secret: bytes) -> None:
        self.connection = connection
        self.wire_in = self.wire_out = self.stderr = -1
        self.received = 0
        self.waits_on = connection.fileno()
        self._listener = Listener(secret)
        self._data = b""
        self._step = self._check_proof
        connection.setblocking(False)
        connection.send(self._listener.nonce)

    def advance(self) -> bool:
        """Read on; True when it may become the wire; raises WireError or OSError when it never will."""
        return self._step()

    def _check_proof(self) -> bool:
        data = self.connection.recv(ANSWER_SIZE - len(self._data))
        if not data:
            raise WireError("a connection ended before its proof")
        self._data += data
        if len(self._data) == ANSWER_SIZE:
            proof = self._listener.check(self._data)
            if not proof:
                raise WireError("a connection does not know the secret of the job")
            self.connection.send(proof)
            self._data = b""
            self._step = self._take_descriptors
        return False

    def _take_descriptors(self) -> bool:
        _, ancillary, _, _ = self.connection.recvmsg(1, socket.CMSG_SPACE(3 * _DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC)
        passed = [
            descriptor
            for level, kind, data in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            for (descriptor,) in _DESCRIPTOR.iter_unpack(data[: len(data) - len(data) % _DESCRIPTOR.size])
        ]
        try:
            if len(passed) != 3:
                raise WireError("a connection has not handed over three descriptors")
            # As everything of ours, above the numbers that ranks get.
            self.wire_in, self.wire_out, self.stderr = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in passed]
        finally:
            for descriptor in passed:
                os.close(descriptor)
        os.set_blocking(self.wire_in, False)
        self.waits_on = self.wire_in
        self._step = self._take_count
        return False

    def _take_count(self) -> bool:
        data = os.read(self.wire_in, RESUME_SIZE - len(self._data))
        if not data:
            raise WireError("a new channel ended before it began")
        self._data += data
        if len(self._data) < RESUME_SIZE:
            return False
        self.received = resume_count(self._data)
        return True

    def close(self) -> None:
        """Close all: the process that has handed its descriptors over ends."""
        self.connection.close()
        for descriptor in (self.wire_in, self.wire_out, self.stderr):
            if descriptor >= 0:
                os.close(descriptor)


class AttachSocket:
    """Waits for the head to come back; raises OSError where there is no place for a socket.

    Attributes:
        path: of the socket.

    Args:
        directory: the socket's.
        secret: of the job.
        attached: gets a channel that may become the wire, and closes it.
    """

    def __init__(
        self,
        directory: PrivateDirectory,
        secret: bytes,
        poller: Poller,
        timers: Timers,
        attached: Callable[[Newcomer], None],
    ) -> None:
        self._directory, self._secret, self._poller, self._timers, self._attached = directory, secret, poller, timers, attached
        self._pending: list[Newcomer] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.path = directory.reserve(SOCKET_NAME)
            # By the descriptor: the directory's path may be longer than the address of a socket.
            self._listener.bind("/proc/self/fd/%d/%s" % (directory.descriptor, SOCKET_NAME))
            self._listener.listen(MOST_PENDING)
            self._listener.setblocking(False)
        except OSError:
            self._listener.close()
            directory.release(SOCKET_NAME)
            raise
        poller.watch(self._listener, self._accept)

    def close(self) -> None:
        """Take no connection any more, and remove the socket and its directory."""
        for newcomer in list(self._pending):
            self._refuse(newcomer)
        self._poller.forget(self._listener)
        self._listener.close()
        self._directory.release(SOCKET_NAME)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it has gone, or comes again
        try:
            _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if user != os.geteuid():
                raise PermissionError(user)
            newcomer = Newcomer(connection, self._secret)
        except OSError:
            connection.close()
            return
        if len(self._pending) >= MOST_PENDING:
            self._refuse(self._pending[0])
        self._pending.append(newcomer)
        self._timers.set(_deadline_of(newcomer), ATTACH_SECONDS, lambda: self._refuse(newcomer))
        self._watch(newcomer)

    def _watch(self, newcomer: Newcomer) -> None:
        self._poller.watch(newcomer.waits_on, lambda: self._advance(newcomer))

    def _advance(self, newcomer: Newcomer) -> None:
        before = newcomer.waits_on
        try:
            complete = newcomer.advance()
            if newcomer.waits_on != before:
                self._poller.forget(before)
                before = -1
                self._watch(newcomer)  # a file cannot be waited for: OSError
                before = newcomer.waits_on
        except BlockingIOError:
            return
        except (OSError, WireError):
            self._drop(newcomer, before)
            newcomer.close()
            return
        if complete:
            self._drop(newcomer, before)
            self._attached(newcomer)

    def _refuse(self, newcomer: Newcomer) -> None:
        self._drop(newcomer, newcomer.waits_on)
        newcomer.close()

    def _drop(self, newcomer: Newcomer, watched: int) -> None:
        """Wait no longer for a connection; -1: nothing is watched."""
        if watched >= 0:
            self._poller.forget(watched)
        self._timers.drop(_deadline_of(newcomer))
        self._pending.remove(newcomer)


def _deadline_of(newcomer: Newcomer) -> str:
    return "attach %d" % newcomer.connection.fileno()
