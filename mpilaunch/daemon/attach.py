"""Where a head comes back to whose channel was lost: a socket in the abstract namespace, for this user alone.

What connects is a process that the head has started here; it hands over its own stdin, stdout and stderr, and those become
the wire. Nobody waits for it: until it has said all that it has to, the wire that there is stays.
"""

from __future__ import annotations

import _socket as socket  # as in `probe`
import fcntl
import os
import struct

from mpilaunch.wire.frames import WireError
from mpilaunch.wire.resume import RESUME_SIZE, resume_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Names for the type checker only: loading typing would cost every node milliseconds.
    from collections.abc import Callable

    from mpilaunch.daemon.poller import Poller

_PEER = struct.Struct("3i")
_DESCRIPTOR = struct.Struct("i")


class Newcomer:
    """A channel that may become the wire.

    Attributes:
        wire_in, wire_out, stderr: its descriptors.
        received: bytes of frames that the head has received.
        greeted: it has handed its descriptors over, and is read from.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.wire_in = self.wire_out = self.stderr = -1
        self.received = 0
        self.greeted = False
        self._said = b""

    def take_descriptors(self) -> bool:
        """Take what was handed over; False when it is not three descriptors; raises OSError."""
        _, ancillary, _, _ = self.connection.recvmsg(1, socket.CMSG_SPACE(3 * _DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC)
        handed = [
            one
            for level, kind, data in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            for (one,) in _DESCRIPTOR.iter_unpack(data[: len(data) - len(data) % _DESCRIPTOR.size])
        ]
        try:
            if len(handed) != 3:
                return False
            # As everything of ours, above the numbers that ranks get.
            self.wire_in, self.wire_out, self.stderr = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in handed]
            return True
        finally:
            for one in handed:
                os.close(one)

    def take_count(self) -> bool:
        """Read on; True when `received` is known; raises WireError or OSError when it never will be."""
        data = os.read(self.wire_in, RESUME_SIZE - len(self._said))
        if not data:
            raise WireError("a new channel ended before it began")
        self._said += data
        if len(self._said) < RESUME_SIZE:
            return False
        self.received = resume_count(self._said)
        return True

    def close(self) -> None:
        """Let go: the process that handed its descriptors over ends."""
        self.connection.close()
        for descriptor in (self.wire_in, self.wire_out, self.stderr):
            if descriptor >= 0:
                os.close(descriptor)


class AttachSocket:
    """Waits for the head to come back.

    Args:
        name: that the head has chosen, and nobody else can guess.
        attached: gets a channel that has said all; it is the receiver's to close.
    """

    def __init__(self, name: str, poller: Poller, attached: Callable[[Newcomer], None]) -> None:
        self._poller, self._attached = poller, attached
        self._newcomer: Newcomer | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0mpilaunch-" + name)
        self._listener.listen(4)
        poller.watch(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            descriptor, _ = self._listener._accept()  # type: ignore[attr-defined]  # `accept` is its other half's
        except OSError:
            return  # whoever it was has gone, or will come again
        connection = socket.socket(fileno=descriptor)
        _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if user != os.geteuid():
            connection.close()
            return
        if self._newcomer is not None:
            self._refuse(self._newcomer)
        self._newcomer = newcomer = Newcomer(connection)
        self._poller.watch(connection, lambda: self._greet(newcomer))

    def _greet(self, newcomer: Newcomer) -> None:
        self._poller.forget(newcomer.connection)
        try:
            if newcomer.take_descriptors():
                self._poller.watch(newcomer.wire_in, lambda: self._listen(newcomer))
                newcomer.greeted = True
                return
        except OSError:
            pass  # not to be waited for, as a file is, or one too many
        self._newcomer = None
        newcomer.close()

    def _listen(self, newcomer: Newcomer) -> None:
        try:
            if not newcomer.take_count():
                return
        except (OSError, WireError):
            self._refuse(newcomer)
            return
        self._poller.forget(newcomer.wire_in)
        self._newcomer = None
        self._attached(newcomer)

    def _refuse(self, newcomer: Newcomer) -> None:
        self._poller.forget(newcomer.wire_in if newcomer.greeted else newcomer.connection)
        newcomer.close()
        self._newcomer = None
