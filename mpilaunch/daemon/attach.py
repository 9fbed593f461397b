"""The Unix socket to which a head connects again after it lost its channel.

The head starts a process on the node, which connects here and relays the challenge (`wire.challenge`): both sides prove that
they know the secret of the job, which was sent over the first channel only. Then the process passes its stdin, stdout and
stderr, which become the wire. Before the proof nothing else is read from a connection, and no descriptor is accepted. The
channel in use stays until the head has sent on the new one how much it has received. Each connection has a deadline.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from mpilaunch.wire.challenge import ANSWER_SIZE, Listener
from mpilaunch.wire.frames import WireError
from mpilaunch.wire.session import RESUME_SIZE, resume_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mpilaunch.daemon.poller import Poller, Timers
    from mpilaunch.daemon.private_directory import PrivateDirectory

SOCKET_NAME = "attach"
ATTACH_SECONDS = 10.0
"""Seconds after which an incomplete connection is closed."""
MOST_PENDING = 8
"""Incomplete connections; one more, and the oldest is closed."""
_PEER = struct.Struct("3i")
_DESCRIPTOR = struct.Struct("i")


class Candidate:
    """A connection that may become the wire.

    Attributes:
        wire_in, wire_out, stderr: the descriptors that it has passed, -1 before.
        received: bytes of frames that the head has received.
        waits_on: the descriptor to read next: the connection's, or `wire_in`.
    """

    def __init__(self, connection: socket.socket, secret: bytes) -> None:
        self.connection = connection
        self.wire_in = self.wire_out = self.stderr = -1
        self.received = 0
        self.waits_on = connection.fileno()
        self._listener = Listener(secret)
        self._data = b""
        self.advance = self._check_proof
        """Read what has arrived; return whether it can become the wire; raises WireError or OSError when it never will."""
        connection.setblocking(False)
        connection.send(self._listener.nonce)

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
            self.advance = self._take_descriptors
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
            # Above the numbers that ranks get.
            self.wire_in, self.wire_out, self.stderr = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in passed]
        finally:
            for descriptor in passed:
                os.close(descriptor)
        os.set_blocking(self.wire_in, False)
        self.waits_on = self.wire_in
        self.advance = self._take_count
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
        """Close the connection and its descriptors, so that the process at the other end exits."""
        self.connection.close()
        for descriptor in (self.wire_in, self.wire_out, self.stderr):
            if descriptor >= 0:
                os.close(descriptor)


class AttachSocket:
    """Listens for the head to connect again, and calls `attached` with each complete candidate, which must close it.

    Raises OSError when no socket can be made.
    """

    def __init__(
        self, directory: PrivateDirectory, secret: bytes, poller: Poller, timers: Timers, attached: Callable[[Candidate], None]
    ) -> None:
        self._directory, self._secret, self._poller, self._timers, self._attached = directory, secret, poller, timers, attached
        self._pending: list[Candidate] = []
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
        """Close all connections, and remove the socket."""
        for candidate in list(self._pending):
            self._refuse(candidate)
        self._poller.forget(self._listener)
        self._listener.close()
        self._directory.release(SOCKET_NAME)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it has gone, or will be reported again
        try:
            _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if user != os.geteuid():
                raise PermissionError(user)
            candidate = Candidate(connection, self._secret)
        except OSError:
            connection.close()
            return
        if len(self._pending) >= MOST_PENDING:
            self._refuse(self._pending[0])
        self._pending.append(candidate)
        self._timers.set(_deadline_of(candidate), ATTACH_SECONDS, lambda: self._refuse(candidate))
        self._watch(candidate)

    def _watch(self, candidate: Candidate) -> None:
        self._poller.watch(candidate.waits_on, lambda: self._advance(candidate))

    def _advance(self, candidate: Candidate) -> None:
        before = candidate.waits_on
        try:
            complete = candidate.advance()
            if candidate.waits_on != before:
                self._poller.forget(before)
                before = -1
                self._watch(candidate)  # raises OSError for a regular file
                before = candidate.waits_on
        except BlockingIOError:
            return
        except (OSError, WireError):
            self._drop(candidate, before)
            candidate.close()
            return
        if complete:
            self._drop(candidate, before)
            self._attached(candidate)

    def _refuse(self, candidate: Candidate) -> None:
        self._drop(candidate, candidate.waits_on)
        candidate.close()

    def _drop(self, candidate: Candidate, watched: int) -> None:
        """Stop waiting for a connection; `watched` is -1 when none of its descriptors is watched."""
        if watched >= 0:
            self._poller.forget(watched)
        self._timers.drop(_deadline_of(candidate))
        self._pending.remove(candidate)


def _deadline_of(candidate: Candidate) -> str:
    return "attach %d" % candidate.connection.fileno()
