"""I/O forwarding on the node: ranks' stdout and stderr to the wire, the wire's stdin to ranks.

Bytes pass as they are; whole lines are the head's work. A stream without credit is not read, and none is read while the
wire's own buffer is full: then the rank blocks on its pipe, and this process does not grow.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from typing import TYPE_CHECKING

from mpilaunch.daemon.poller import Poller
from mpilaunch.wire.frames import MAX_DATA, STDERR, STDIN, STDOUT, rank_of, stream_channel
from mpilaunch.wire.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

PIPE_SIZE = 1 << 20
"""Wished size of a rank's output pipes, in bytes: fewer and larger reads. The kernel may refuse it."""


class Output:
    """One rank's stdout or stderr: read while there is credit, until end of file."""

    def __init__(self, forwarder: Forwarder, channel: int, descriptor: int) -> None:
        self._forwarder = forwarder
        self.channel = channel
        self.descriptor = descriptor

    def read_ready(self) -> None:
        """Send on what the rank has written, as far as the credit goes."""
        session = self._forwarder.session
        data = os.read(self.descriptor, min(session.credit(self.channel), MAX_DATA))
        if not data:
            self._forwarder.close_output(self)
            return
        session.send_data(self.channel, data)
        if not session.credit(self.channel):
            self._forwarder.reading.forget(self.descriptor)


class Input:
    """One rank's stdin: written as fast as the rank reads; what was written is granted to the head again."""

    def __init__(self, forwarder: Forwarder, channel: int, descriptor: int) -> None:
        self._forwarder = forwarder
        self._channel = channel
        self._descriptor = descriptor
        self._pending = bytearray()
        self._written = 0
        self._ended = False
        self._writable = True
        self._waiting = False

    def take(self, data: bytes) -> None:
        """Queue bytes for the rank."""
        self._pending += data
        self.write_ready()

    def end(self) -> None:
        """Close the rank's stdin once it has everything."""
        self._ended = True
        self.write_ready()

    def consumed(self) -> int:
        """Return how many bytes the rank has read of what it was given."""
        return self._written - _bytes_in_pipe(self._descriptor)

    def write_ready(self) -> None:
        """Write what fits into the pipe now."""
        written = len(self._pending)
        if self._writable and self._pending:
            try:
                written = os.write(self._descriptor, self._pending)
                self._written += written
            except BlockingIOError:
                written = 0
            except BrokenPipeError:
                # The rank reads no more. The rest is dropped, so that it holds up no other rank that gets the same.
                self._writable = False
        del self._pending[:written]
        self._forwarder.session.grant(self._channel, written)
        self._wait(bool(self._pending))
        if self._ended and self._writable and not self._pending:
            self._writable = False
            # We keep an end for reading, which no rank ever sees: it tells how much of the pipe is left unread.
            kept = os.open("/proc/self/fd/%d" % self._descriptor, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.close(self._descriptor)
            self._descriptor = kept

    def close(self) -> None:
        """The rank has ended."""
        self._wait(False)
        os.close(self._descriptor)

    def _wait(self, waiting: bool) -> None:
        """Be called again when the pipe takes more, or no longer."""
        if waiting != self._waiting:
            self._waiting = waiting
            if waiting:
                self._forwarder.poller.watch(self._descriptor, self.write_ready, reading=False, writing=True)
            else:
                self._forwarder.poller.forget(self._descriptor)


class Forwarder:
    """All streams of the ranks of this node.

    Args:
        session: the wire.
        poller: the loop's.
        drained: called when a rank's stdout and stderr have both ended.
    """

    def __init__(self, session: Session, poller: Poller, drained: Callable[[], None]) -> None:
        self.session = session
        self.poller = poller
        # The outputs' poller is itself one descriptor of the loop's: all reading pauses and resumes by one call.
        self.reading = Poller()
        self._drained = drained
        self._outputs: dict[int, Output] = {}
        self._inputs: dict[int, Input] = {}
        self._paused = True
        self.pause(False)

    def open_rank(self, rank: int, wants_stdin: bool, merge_stderr: bool, window: int) -> dict[int, int]:
        """Make a rank's pipes; return the ends that become its descriptors 0, 1 and 2, which the caller closes.

        The wire's side of stdin is open since `prepare`: the head may send it right behind `launch`.
        """
        if wants_stdin:
            child_in, ours = os.pipe()
            os.set_blocking(ours, False)
            channel = stream_channel(rank, STDIN)
            self._inputs[channel] = Input(self, channel, ours)
        else:
            child_in = os.open("/dev/null", os.O_RDONLY)
        child_out = self._open_output(stream_channel(rank, STDOUT), window)
        child_err = os.dup(child_out) if merge_stderr else self._open_output(stream_channel(rank, STDERR), window)
        return {0: child_in, 1: child_out, 2: child_err}

    def take_input(self, channel: int, data: bytes) -> None:
        """Give bytes of the head's stdin to the rank of this channel."""
        if channel in self._inputs:
            self._inputs[channel].take(data)

    def end_input(self, channel: int) -> None:
        """Tell a rank that the head's stdin is at its end."""
        if channel in self._inputs:
            self._inputs[channel].end()

    def close_input(self, rank: int) -> int:
        """A rank has ended: close its stdin; return how many bytes it had read of it."""
        stdin = self._inputs.pop(stream_channel(rank, STDIN), None)
        if stdin is None:
            return 0
        consumed = stdin.consumed()
        stdin.close()
        return consumed

    def credit_added(self, channel: int) -> None:
        """Read a stream again that had run out of credit."""
        output = self._outputs.get(channel)
        if output is not None and output.descriptor not in self.reading:
            self.reading.watch(output.descriptor, output.read_ready)

    def pause(self, paused: bool) -> None:
        """Stop or resume the reading of all outputs."""
        if paused != self._paused:
            self._paused = paused
            if paused:
                self.poller.forget(self.reading)
            else:
                self.poller.watch(self.reading, self._read_ready)

    def all_ended(self) -> bool:
        """Say whether every output of every rank has ended."""
        return not self._outputs

    def close_output(self, output: Output) -> None:
        """End a stream; tells when it was the rank's last."""
        if output.descriptor in self.reading:
            self.reading.forget(output.descriptor)
        os.close(output.descriptor)
        del self._outputs[output.channel]
        self.session.send_end(output.channel)
        rank = rank_of(output.channel)
        if not any(stream_channel(rank, stream) in self._outputs for stream in (STDOUT, STDERR)):
            self._drained()

    def close_idle_outputs(self) -> None:
        """End every stream that somebody else still holds open although there is nothing to read from it."""
        for output in list(self._outputs.values()):
            if self.session.credit(output.channel) and not _bytes_in_pipe(output.descriptor):
                self.close_output(output)

    def _open_output(self, channel: int, window: int) -> int:
        ours, theirs = os.pipe()
        try:
            fcntl.fcntl(ours, 1031, PIPE_SIZE)  # F_SETPIPE_SZ, which Python names from 3.10 on
        except OSError:
            pass
        self.session.open_sending(channel, window)
        self._outputs[channel] = output = Output(self, channel, ours)
        self.reading.watch(ours, output.read_ready)
        return theirs

    def _read_ready(self) -> None:
        self.reading.run(0)


def _bytes_in_pipe(descriptor: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))[0])
