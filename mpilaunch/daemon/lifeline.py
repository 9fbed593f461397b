"""The daemon's side of the wire: the session, and the channel below it, which is read and written without blocking.

When a channel is lost while ranks run, the head has a limited time to connect again; until then the session keeps what is
sent. The loss of the head, by end of file or silence, is reported once, and `loop` then ends the ranks; after it nothing is
read or written any more.
"""

from __future__ import annotations

import os
import time

from mpilaunch.daemon.poller import Timers
from mpilaunch.wire.frames import MARKER, WireError
from mpilaunch.wire.session import Session, resume_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpilaunch.daemon.attach import AttachSocket, Candidate
    from mpilaunch.daemon.poller import Poller
    from mpilaunch.daemon.private_directory import PrivateDirectory

READ_SIZE = 256 << 10
WRITE_SIZE = 1 << 20
START_SILENCE = 60.0
"""Limit of the head's silence in seconds, until its message `limits` sets another."""
DRAIN_PAUSE = 0.01
"""Seconds between two attempts to write the rest."""
SILENT_STEPS = 4
"""Steps in which silence is counted."""


class Silence:
    """Counts the silence of the head; calls `too_long` once it lasts.

    Attributes:
        seconds: the limit; it holds from the next `restart` on.
    """

    def __init__(self, timers: Timers, too_long: Callable[[], None]) -> None:
        self.seconds = START_SILENCE
        self._timers, self._too_long = timers, too_long
        self._steps, self._step_ends = 0, 0.0

    def restart(self, steps: int = 0) -> None:
        """Count from now on, or from this many steps ago."""
        self._steps = steps
        self._step_ends = time.monotonic() + self.seconds / SILENT_STEPS
        self._timers.set("silence", self.seconds / SILENT_STEPS, self._end_step)

    def stop(self) -> None:
        self._timers.drop("silence")

    def _end_step(self) -> None:
        """Count a step of silence, but not one in which this whole node was frozen."""
        frozen = time.monotonic() - self._step_ends >= self.seconds / SILENT_STEPS
        steps = self._steps + (not frozen)
        if steps < SILENT_STEPS:
            self.restart(steps)
        else:
            self._too_long()


class Lifeline:
    """The wire to the head: calls `readable` when the channel can be read, and once `head_lost`."""

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
        self.lost = self._may_reattach = False
        self._poller, self._timers, self._directory = poller, timers, directory
        self._readable, self._head_lost = readable, head_lost
        self.silence = Silence(timers, self._lose_channel)
        self._attach: AttachSocket | None = None
        self._attach_seconds = 0.0
        self._outgoing = bytearray(MARKER)  # before all frames of a channel
        self._channel: Candidate | None = None
        self._wire_in = self._wire_out = -1
        self._take_channel(wire_in, wire_out)

    @property
    def backlog(self) -> int:
        """Bytes that wait for the channel."""
        return len(self._outgoing)

    def limit_silence(self, seconds: float) -> None:
        """Count the head as lost after this silence."""
        self.silence.seconds = seconds
        self.silence.restart()

    def listen(self, secret: bytes, seconds: float) -> str:
        """Let the head connect again within this time; return the path of a new socket, "" if there is one; raises OSError."""
        self._attach_seconds = seconds
        if self._attach is not None:
            return ""
        from mpilaunch.daemon.attach import AttachSocket

        self._attach = AttachSocket(self._directory, secret, self._poller, self._timers, self._attached)
        return self._attach.path

    def keep(self) -> None:
        """Give the head time to connect again from now on, and keep what is sent."""
        self._may_reattach = True
        if self._attach is not None:
            self.session.keep()

    def receive(self) -> list[tuple[int, int, Any]]:
        """Return the events of the bytes that have arrived; raises WireError."""
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
        self.silence.restart()
        return self.session.receive_data(data, time.monotonic())

    def flush(self) -> None:
        """Write as much as the channel accepts now."""
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
        self._poller.watch_writing(self._wire_out, lambda: None, bool(self._outgoing))

    def drain(self, seconds: float) -> None:
        """Wait until the channel has accepted everything, for at most this time."""
        ends = time.monotonic() + seconds
        self.flush()
        while self._outgoing and time.monotonic() < ends:
            time.sleep(DRAIN_PAUSE)
            self.flush()

    def lose(self) -> None:
        if self.lost:
            return
        self._leave_channel()
        self.session.stop_keeping()
        self.silence.stop()
        self._timers.drop("attach")
        self.lost = True
        if self._attach is not None:
            self._attach.close()
            self._attach = None
        self._head_lost()

    # The channel

    def _lose_channel(self) -> None:
        if self._attach is None or not self._may_reattach:
            self.lose()
        else:
            self._leave_channel()
            self.silence.stop()
            self._timers.set("attach", self._attach_seconds, self.lose)

    def _attached(self, candidate: Candidate) -> None:
        """Continue on the head's new channel after the last byte that it received."""
        try:
            if self.lost:
                raise WireError("too late")
            unacknowledged = self.session.resend(candidate.received)
        except WireError:
            candidate.close()
            return
        self._leave_channel()
        self._timers.drop("attach")
        os.dup2(candidate.stderr, 2)
        os.dup2(candidate.stderr, 1)
        self._channel = candidate
        self._take_channel(candidate.wire_in, candidate.wire_out)
        # The unacknowledged bytes include those that the old channel had not accepted.
        self._outgoing += resume_frame(self.session.received) + unacknowledged

    def _take_channel(self, wire_in: int, wire_out: int) -> None:
        for descriptor in (wire_in, wire_out):
            os.set_blocking(descriptor, False)
        self._wire_in, self._wire_out = wire_in, wire_out
        self._poller.watch(wire_in, self._readable)
        self.silence.restart()

    def _leave_channel(self) -> None:
        if self._wire_in < 0:
            return
        self._outgoing.clear()
        self._poller.watch_writing(self._wire_out, lambda: None, False)
        self._poller.forget(self._wire_in)
        if self._channel is not None:
            self._channel.close()
        else:
            os.close(self._wire_in)
            os.close(self._wire_out)
        self._wire_in = self._wire_out = -1
