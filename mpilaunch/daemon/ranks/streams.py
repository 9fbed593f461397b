"""Forwarding of streams on the node: stdout and stderr of ranks to the wire, stdin from the wire to ranks.

Bytes are passed on unchanged; the head assembles lines. A stream without credit is not read, and none is read while the wire's
buffer is full: then the rank blocks on its pipe or raw terminal, and this process does not grow.

Lines of many ranks at about the same time reach the head together, since each packet costs it time: the first is sent at once,
and then nothing is read for LULL seconds. That ends where more than FEW bytes arrive in a PERIOD, or a rank ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time

from mpilaunch.daemon.poller import Poller, Timers
from mpilaunch.wire.frames import MAX_DATA, STDERR, STDIN, STDOUT, rank_of, stream_channel
from mpilaunch.wire.session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PIPE_SIZE = 1 << 20
"""Size of a rank's output pipes in bytes, for fewer and larger reads. The kernel may refuse it."""
LULL = 0.005
PERIOD = 0.25
FEW = 4096


class Input:
    """One rank's stdin: written as fast as the rank reads; each byte written becomes credit of the head again."""

    def __init__(self, forwarder: Forwarder, channel: int, descriptor: int) -> None:
        self._forwarder, self._channel, self._descriptor = forwarder, channel, descriptor
        self._pending = bytearray()
        self._written = 0
        self._ended = False
        self._writable = True

    def take(self, data: bytes) -> None:
        self._pending += data
        self.write_ready()

    def end(self) -> None:
        """Close the rank's stdin once all bytes are written."""
        self._ended = True
        self.write_ready()

    def consumed(self) -> int:
        """Return how many bytes the rank has read."""
        return self._written - _bytes_in_pipe(self._descriptor)

    def write_ready(self) -> None:
        """Write as much as the pipe accepts now."""
        written = len(self._pending)
        if self._writable and self._pending:
            try:
                written = os.write(self._descriptor, self._pending)
                self._written += written
            except BlockingIOError:
                written = 0
            except BrokenPipeError:
                # The rank has closed its stdin. Drop the rest: kept bytes would block other ranks that get the same input.
                self._writable = False
        del self._pending[:written]
        self._forwarder.session.grant(self._channel, written)
        self._forwarder.poller.watch_writing(self._descriptor, self.write_ready, bool(self._pending))
        if self._ended and self._writable and not self._pending:
            self._writable = False
            # An end for reading, which no rank has, still shows how much of the pipe is unread.
            reader = os.open("/proc/self/fd/%d" % self._descriptor, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.close(self._descriptor)
            self._descriptor = reader

    def close(self) -> None:
        """Close the pipe after the end of the rank."""
        self._forwarder.poller.watch_writing(self._descriptor, self.write_ready, False)
        os.close(self._descriptor)


class Forwarder:
    """The streams of all ranks of this node; calls `drained` when a rank's stdout and stderr have both ended."""

    def __init__(self, session: Session, poller: Poller, timers: Timers, drained: Callable[[], None]) -> None:
        self.session, self.poller, self._timers, self._drained = session, poller, timers, drained
        # The loop watches this poller as one descriptor: one call pauses or resumes the reading of all outputs.
        self._reading = Poller()
        self._outputs: dict[int, int] = {}  # by channel
        self._inputs: dict[int, Input] = {}
        self._paused = self._resting = self._discards = False
        self._period_ends, self._read_in_period = 0.0, 0
        self._watch()

    def open_rank(self, rank: int, wants_stdin: bool, merge_stderr: bool, window: int, terminal: bool) -> dict[int, int]:
        """Make a rank's pipes, and a `terminal` for stdout if there is one; return the ends for its descriptors 0, 1 and 2.

        The caller closes these.
        The wire's side of stdin has been open since `prepare`: the head may send input right after `launch`.
        """
        if wants_stdin:
            child_in, ours = os.pipe()
            os.set_blocking(ours, False)
            channel = stream_channel(rank, STDIN)
            self._inputs[channel] = Input(self, channel, ours)
        else:
            child_in = os.open("/dev/null", os.O_RDONLY)
        child_out = self._open_output(stream_channel(rank, STDOUT), window, terminal)
        child_err = os.dup(child_out) if merge_stderr else self._open_output(stream_channel(rank, STDERR), window)
        return {0: child_in, 1: child_out, 2: child_err}

    def take_input(self, channel: int, data: bytes) -> None:
        if channel in self._inputs:
            self._inputs[channel].take(data)

    def end_input(self, channel: int) -> None:
        if channel in self._inputs:
            self._inputs[channel].end()

    def close_input(self, rank: int) -> int:
        """Close the stdin of an ended rank; return how many bytes it has read."""
        stdin = self._inputs.pop(stream_channel(rank, STDIN), None)
        if stdin is None:
            return 0
        consumed = stdin.consumed()
        stdin.close()
        return consumed

    def credit_added(self, channel: int) -> None:
        """Resume reading a stream that had run out of credit."""
        if channel in self._outputs and self._outputs[channel] not in self._reading:
            self._reading.watch(self._outputs[channel], lambda: self._read(channel))

    def pause(self, paused: bool) -> None:
        """Stop or resume the reading of all outputs."""
        if paused != self._paused:
            self._paused = paused
            self._watch()

    def hurry(self) -> None:
        """Rest no more for a PERIOD: a rank has ended, and so do its streams."""
        self._period_ends, self._read_in_period = time.monotonic() + PERIOD, FEW + 1
        self._timers.drop("rest")
        self._rest(False)

    def discard(self) -> None:
        """Read all outputs from now on and drop what they hold: what writes to them gets no signal and never waits."""
        self._discards = True
        for channel in self._outputs:
            self.credit_added(channel)
        self.pause(False)

    def all_ended(self) -> bool:
        return not self._outputs

    def close_idle_outputs(self) -> bool:
        """End every empty stream, which an orphaned descendant may still hold open; return whether there was one."""
        idle = [one for one, pipe in self._outputs.items() if self.session.credit(one) and not _bytes_in_pipe(pipe)]
        for channel in idle:
            self._close_output(channel)
        return bool(idle)

    def _watch(self) -> None:
        wanted = not (self._paused or self._resting)
        if wanted and self._reading not in self.poller:
            self.poller.watch(self._reading, self._read_ready)
        elif not wanted and self._reading in self.poller:
            self.poller.forget(self._reading)

    def _read_ready(self) -> None:
        """Read the outputs that are ready, and rest if they say little."""
        now = time.monotonic()
        if now >= self._period_ends:
            self._period_ends, self._read_in_period = now + PERIOD, 0
        self._reading.run(0)
        if self._read_in_period <= FEW and self._outputs:
            self._timers.set("rest", LULL, lambda: self._rest(False))
            self._rest(True)

    def _rest(self, resting: bool) -> None:
        self._resting = resting
        self._watch()

    def _open_output(self, channel: int, window: int, terminal: bool = False) -> int:
        ours, theirs = (terminal and _raw_terminal()) or os.pipe()
        try:
            fcntl.fcntl(ours, 1031, PIPE_SIZE)  # F_SETPIPE_SZ, which Python names from 3.10 on
        except OSError:
            pass
        self.session.open_sending(channel, window)
        self._outputs[channel] = ours
        self.credit_added(channel)
        return theirs

    def _read(self, channel: int) -> None:
        """Send a rank's output, as far as the credit allows."""
        size = MAX_DATA if self._discards else min(self.session.credit(channel), MAX_DATA)
        try:
            data = os.read(self._outputs[channel], size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # no process has the pseudo-terminal any more, and all that was written has been read
        if not data:
            self._close_output(channel)
            return
        if self._discards:
            return
        self._read_in_period += len(data)
        self.session.send_data(channel, data)
        if not self.session.credit(channel):
            self._reading.forget(self._outputs[channel])

    def _close_output(self, channel: int) -> None:
        """End a stream, and call `drained` when it was the rank's last."""
        descriptor = self._outputs.pop(channel)
        if descriptor in self._reading:
            self._reading.forget(descriptor)
        os.close(descriptor)
        self.session.send_end(channel)
        rank = rank_of(channel)
        if not any(stream_channel(rank, stream) in self._outputs for stream in (STDOUT, STDERR)):
            self._drained()


def _raw_terminal() -> tuple[int, int] | None:
    """Return the two ends of a new pseudo-terminal that changes no byte, None where there is none.

    It becomes nobody's controlling terminal, so its end sends no SIGHUP.
    """
    import tty  # few jobs want one

    try:
        ours, theirs = os.openpty()
    except OSError:
        return None
    tty.setraw(theirs)
    return ours, theirs


def _bytes_in_pipe(descriptor: int) -> int:
    import termios  # most ranks end without this

    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))[0])
