"""The daemon's side of the wire: a channel, read and written without ever waiting, and the session in the middle.

A channel that is lost while ranks run may be replaced by another, for which the head has some time: until then the session
keeps what is to be said. When the head itself is lost this is told once; nothing is read or written any more, and what is to be
said goes nowhere.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from mpilaunch.daemon.timers import Timers
from mpilaunch.wire.frames import MARKER, WireError
from mpilaunch.wire.resume import resume_frame
from mpilaunch.wire.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpilaunch.daemon.attach import AttachSocket, Newcomer
    from mpilaunch.daemon.poller import Poller
    from mpilaunch.daemon.private_directory import PrivateDirectory

READ_SIZE = 256 << 10
WRITE_SIZE = 1 << 20
START_SILENCE = 60.0
"""Seconds that the head may be silent before its first message, `limits`, says how long it may be."""
SILENT_STEPS = 4
"""Silence is counted in so many steps."""


class Lifeline:
    """The wire.

    Attributes:
        session: what is said and heard.
        lost: the other side is gone.
        backlog: bytes that wait for the channel.

    Args:
        wire_in, wire_out: descriptors of the first channel.
        directory: of the socket to which a lost head connects.
        readable: called by the poller when there is something to receive.
        head_lost: called once when the other side is gone.
    """

    def __init__(
        self,
        wire_in: int,
        wire_out: int,
        poller: Poller,
        timers: Timers,
        directory: PrivateDirectory,
        readable: Callable[[], None],
        head_lost: Callable[[], None],
    ) -> None:
        self.session = Session()
        self.lost = self._awaited = False
        self._poller, self._timers, self._directory = poller, timers, directory
        self._readable, self._head_lost = readable, head_lost
        self._silence = START_SILENCE
        self._silent_steps, self._step_ends = 0, 0.0
        self._attach: AttachSocket | None = None
        self._attach_seconds = 0.0
        self._outgoing = bytearray(MARKER)  # before all frames of a channel
        self._waiting = False
        self._channel: Newcomer | None = None
        self._wire_in = self._wire_out = -1
        self._take_channel(wire_in, wire_out)

    @property
    def backlog(self) -> int:
        return len(self._outgoing)

    def limit_silence(self, seconds: float) -> None:
        """Count the head as lost when it is silent for so long."""
        self._silence = seconds
        self._hear()

    def listen(self, secret: bytes, seconds: float) -> AttachSocket | None:
        """Let the head come back, within so many seconds; return where, None when that was said before. Raises OSError."""
        self._attach_seconds = seconds
        if self._attach is not None:
            return None
        from mpilaunch.daemon.attach import AttachSocket

        self._attach = AttachSocket(self._directory, secret, self._poller, self._timers, self._come_back)
        return self._attach

    def keep(self) -> None:
        """From now on there is something to lose: the head is given time to come back, where it will."""
        self._awaited = True
        if self._attach is not None:
            self.session.keep()

    def receive(self) -> list[tuple[int, int, Any]]:
        """Return what has come; raises WireError."""
        if self._wire_in < 0:
            return []
        try:
            data = os.read(self._wire_in, READ_SIZE)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self._lose_channel()
            return []
        self._hear()
        return self.session.receive_data(data, time.monotonic())

    def flush(self) -> None:
        """Write what the channel takes now."""
        data = self.session.data_to_send()
        if self._wire_in < 0:
            return
        self._outgoing += data
        try:
            while self._outgoing:
                with memoryview(self._outgoing) as view:
                    written = os.write(self._wire_out, view[:WRITE_SIZE])
                del self._outgoing[:written]
        except BlockingIOError:
            pass
        except OSError:
            self._lose_channel()
            return
        self._wait_to_write(bool(self._outgoing))

    def lose(self) -> None:
        """The other side is gone."""
        if self.lost:
            return
        self._leave_channel()
        self.session.stop_keeping()
        for name in ("silence", "attach"):
            self._timers.drop(name)
        self.lost = True
        if self._attach is not None:
            self._attach.close()
            self._attach = None
        self._head_lost()

    # The channel

    def _lose_channel(self) -> None:
        if self._attach is None or not self._awaited:
            self.lose()
        else:
            self._leave_channel()
            self._timers.drop("silence")
            self._timers.set("attach", self._attach_seconds, self.lose)

    def _come_back(self, newcomer: Newcomer) -> None:
        """The head is there again: go on where it stopped to hear us."""
        try:
            if self.lost:
                raise WireError("too late")
            unacknowledged = self.session.resend(newcomer.received)
        except WireError:
            newcomer.close()
            return
        self._leave_channel()
        self._timers.drop("attach")
        os.dup2(newcomer.stderr, 2)
        os.dup2(newcomer.stderr, 1)
        self._channel = newcomer
        self._take_channel(newcomer.wire_in, newcomer.wire_out)
        # What the session had to say on the old channel is among what was not heard.
        self._outgoing += resume_frame(self.session.received) + unacknowledged

    def _take_channel(self, wire_in: int, wire_out: int) -> None:
        for descriptor in (wire_in, wire_out):
            os.set_blocking(descriptor, False)
        self._wire_in, self._wire_out = wire_in, wire_out
        self._poller.watch(wire_in, self._readable)
        self._hear()

    def _leave_channel(self) -> None:
        if self._wire_in < 0:
            return
        self._wait_to_write(False)
        self._poller.forget(self._wire_in)
        self._outgoing.clear()
        if self._channel is not None:
            self._channel.close()
        else:
            os.close(self._wire_in)
            os.close(self._wire_out)
        self._wire_in = self._wire_out = -1

    def _hear(self) -> None:
        self._silent_steps = 0
        self._begin_step()

    def _begin_step(self) -> None:
        self._step_ends = time.monotonic() + self._silence / SILENT_STEPS
        self._timers.set("silence", self._silence / SILENT_STEPS, self._end_step)

    def _end_step(self) -> None:
        """Count only time that we have lived through: a node that was frozen as a whole goes on where it was."""
        if time.monotonic() - self._step_ends < self._silence / SILENT_STEPS:
            self._silent_steps += 1
        if self._silent_steps < SILENT_STEPS:
            self._begin_step()
        else:
            self._lose_channel()

    def _wait_to_write(self, waiting: bool) -> None:
        if waiting == self._waiting:
            return
        self._waiting = waiting
        if waiting:
            self._poller.watch(self._wire_out, lambda: None, reading=False, writing=True)
        else:
            self._poller.forget(self._wire_out)
