"""Forwarding of streams on the node: stdout and stderr of ranks to the wire, stdin from the wire to ranks.

Bytes are passed on unchanged; the head assembles lines. A stream without credit is not read, and none is read while the wire's
buffer is full: then the rank blocks on its pipe or raw terminal, and this process does not grow.

What is read within LULL seconds of the last sending is held and sent together, as each packet costs the head more time than a
line. It is sent earlier when ENOUGH is held, or a rank or a stream ends. Lines of different ranks keep the order in which they
were read; but blocks of at least BLOCK bytes are joined for each stream, as each frame has its cost too.
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
ENOUGH = 64 << 10
"""Bytes of all streams."""
BLOCK = 1024


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


class Output:
    """One rank's stdout or stderr: `size` bytes were read of it and are not sent yet, the last of them in `piece`."""

    def __init__(self, channel: int, descriptor: int) -> None:
        self.channel, self.descriptor = channel, descriptor
        self.piece: list[bytes] = []
        self.size = 0


class Forwarder:
    """The streams of all ranks of this node; calls `drained` when a rank's stdout and stderr have both ended."""

    def __init__(self, session: Session, poller: Poller, timers: Timers, drained: Callable[[], None]) -> None:
        self.session, self.poller, self._timers, self._drained = session, poller, timers, drained
        # The loop watches this poller as one descriptor: one call pauses or resumes the reading of all outputs.
        self._reading = Poller()
        self._outputs: dict[int, Output] = {}  # by channel
        self._held: list[tuple[Output, list[bytes]]] = []
        self._held_bytes, self._sent = 0, 0.0
        # One for all reads: the memory of a bytes object that is made long and cut short would be mapped for each.
        self._buffer = memoryview(bytearray(MAX_DATA))
        self._inputs: dict[int, Input] = {}
        self._paused, self._discards = True, False
        self.pause(False)

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
        output = self._outputs.get(channel)
        if output is not None and output.descriptor not in self._reading:
            self._reading.watch(output.descriptor, lambda: self._read(output))

    def pause(self, paused: bool) -> None:
        """Stop or resume the reading of all outputs."""
        if paused != self._paused:
            self._paused = paused
            if paused:
                self.poller.forget(self._reading)
            else:
                self.poller.watch(self._reading, self._read_ready)

    def send_held(self) -> None:
        """Send what is held."""
        for output, piece in self._held:
            self.session.send_data(output.channel, piece[0] if len(piece) == 1 else b"".join(piece))
            output.piece, output.size = [], 0
        self._held, self._held_bytes, self._sent = [], 0, time.monotonic()
        self._timers.drop("held")

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
        idle = [one for one in self._outputs.values() if self._credit(one) and not _bytes_in_pipe(one.descriptor)]
        for output in idle:
            self._close_output(output)
        return bool(idle)

    def _open_output(self, channel: int, window: int, terminal: bool = False) -> int:
        ours, theirs = (terminal and _raw_terminal()) or os.pipe()
        try:
            fcntl.fcntl(ours, 1031, PIPE_SIZE)  # F_SETPIPE_SZ, which Python names from 3.10 on
        except OSError:
            pass
        self.session.open_sending(channel, window)
        self._outputs[channel] = Output(channel, ours)
        self.credit_added(channel)
        return theirs

    def _credit(self, output: Output) -> int:
        return self.session.credit(output.channel) - output.size

    def _read_ready(self) -> None:
        self._reading.run(0)
        rest = self._sent + LULL - time.monotonic()
        if self._held_bytes >= ENOUGH or (self._held and rest <= 0):
            self.send_held()
        elif self._held and "held" not in self._timers:
            self._timers.set("held", rest, self.send_held)

    def _read(self, output: Output) -> None:
        """Read a rank's output, as far as the credit and a frame allow."""
        size = MAX_DATA if self._discards else min(self._credit(output), MAX_DATA - output.size)
        try:
            count = os.readv(output.descriptor, (self._buffer[:size],))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            count = 0  # no process has the pseudo-terminal any more, and all that was written has been read
        if not count:
            self._close_output(output)
            return
        if self._discards:
            return
        if not output.piece or (count < BLOCK and output.piece is not self._held[-1][1]):
            output.piece = []
            self._held.append((output, output.piece))
        output.piece.append(bytes(self._buffer[:count]))
        output.size += count
        self._held_bytes += count
        if not self._credit(output):
            self._reading.forget(output.descriptor)

    def _close_output(self, output: Output) -> None:
        """End a stream, and call `drained` when it was the rank's last."""
        self.send_held()
        del self._outputs[output.channel]
        if output.descriptor in self._reading:
            self._reading.forget(output.descriptor)
        os.close(output.descriptor)
        self.session.send_end(output.channel)
        rank = rank_of(output.channel)
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
