"""One side of the wire: frames, credits and control messages, without I/O.

The head's asyncio driver and the daemon's loop use the same class. The driver passes in the bytes that it reads
(`receive_data`), and writes those of `data_to_send`. The session counts the credits of every stream in both directions; it
does not interpret control messages.

A lost channel may be replaced (docs/wire.md): both sides count the bytes of frames since the marker, and after `keep` the
session keeps what it sends until the other side acknowledges it. On a new channel each side begins with RESUME and its count,
and gets the rest.
"""

from __future__ import annotations

import json
import struct

from mpilaunch.wire import frames
from mpilaunch.wire.frames import ACK, CONTROL, CREDIT, DATA, END, HEADER, PING, PONG, RESUME, FrameReader, WireError, frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().raw_decode
_CREDIT = struct.Struct(">I")
_CLOCK = struct.Struct(">d")
_COUNT = struct.Struct(">Q")
RESUME_SIZE = HEADER.size + _COUNT.size
ACK_EVERY = 256 << 10
"""Received bytes after which an ACK is sent."""


class Session:
    """One side of the wire; `received` counts the bytes of frames that have been received.

    Args:
        max_control: most bytes of one control message that is accepted.
        max_values: most values in it, 0 for any number: `[]` is two bytes on the wire and dozens in memory.
    """

    def __init__(self, max_control: int = frames.MAX_CONTROL, max_values: int = 0) -> None:
        self._max_values = max_values
        self.received = 0
        self._sent = self._acknowledged = 0
        self._unacknowledged: Unacknowledged | None = None
        self._reader = FrameReader(max_control)
        self._out: list[bytes] = []
        self._may_send: dict[int, int] = {}
        self._may_receive: dict[int, int] = {}
        self._broken: WireError | None = None

    # Streams

    def open_sending(self, channel: int, window: int) -> None:
        """Open a stream that this side sends."""
        self._may_send[channel] = window

    def open_receiving(self, channel: int, window: int) -> None:
        """Open a stream that the other side sends."""
        self._may_receive[channel] = window

    def credit(self, channel: int) -> int:
        """Return how many bytes may be sent on a stream now; 0 when it has ended."""
        return self._may_send.get(channel, 0)

    def send_data(self, channel: int, data: bytes) -> None:
        """Send bytes of a stream, at most its credit and MAX_DATA."""
        credit = self._may_send[channel]
        if not 0 < len(data) <= min(credit, frames.MAX_DATA):
            raise ValueError("%d bytes on channel %d with a credit of %d" % (len(data), channel, credit))
        self._may_send[channel] = credit - len(data)
        # Two items, so that the payload is copied only once, when the driver joins them.
        self._out.append(HEADER.pack(frames.MAGIC, DATA, channel, len(data)))
        self._out.append(data)

    def send_end(self, channel: int) -> None:
        """End a stream; a second time does nothing."""
        if self._may_send.pop(channel, None) is not None:
            self._out.append(frame(END, channel))

    def grant(self, channel: int, size: int) -> None:
        """Let the other side send `size` more bytes on a stream, unless it has ended."""
        if size and channel in self._may_receive:
            self._may_receive[channel] += size
            self._out.append(frame(CREDIT, channel, _CREDIT.pack(size)))

    # Messages

    def send(self, message: dict[str, Any], shared: bytes = b"") -> None:
        """Send a control message, a dict with `type`, and further members that `encode_shared` returned.

        Lone surrogates (bytes that are not UTF-8) are kept.
        """
        own = _encode(message).encode("ascii")
        if shared:
            # Three items, so that the shared bytes are copied only when the driver joins them, and kept once for all nodes.
            self._out += (HEADER.pack(frames.MAGIC, CONTROL, 0, len(shared) + len(own) - 1), shared, own[1:])
        else:
            self._out.append(frame(CONTROL, 0, own))

    def send_ping(self, clock: float) -> None:
        """Ask the other side for a PONG that gives back `clock`, this side's monotonic clock."""
        self._out.append(frame(PING, 0, _CLOCK.pack(clock)))

    # Bytes

    def data_to_send(self) -> bytes:
        """Take the bytes that the driver must write now."""
        data = b"".join(self._out)
        self._sent += len(data)
        if self._unacknowledged is not None:
            self._unacknowledged.add(self._out)
        self._out.clear()
        return data

    def keep(self) -> None:
        """Keep what is sent from now on until it is acknowledged."""
        if self._unacknowledged is None:
            self._unacknowledged = Unacknowledged(self._sent)

    @property
    def unacknowledged(self) -> int:
        """Bytes that are kept because the other side has not acknowledged them."""
        return 0 if self._unacknowledged is None else self._unacknowledged.size

    def stop_keeping(self) -> None:
        """Keep nothing: a lost channel will not be replaced."""
        self._unacknowledged = None

    def resend(self, count: int) -> bytes:
        """Return what to write first on a new channel, when the other side has received `count` bytes; raises WireError."""
        if self._unacknowledged is None:
            raise WireError("nothing was kept that could be sent again")
        return self._unacknowledged.after(count)

    def receive_data(self, data: bytes | memoryview, clock: float) -> list[tuple[int, int, Any]]:
        """Take bytes that were read at this side's monotonic time `clock`; return their events.

        Returns:
            events as (kind, channel, value): CONTROL with a dict, DATA with bytes, END and CREDIT with None, PONG with
            (this side's clock of the PING, the other side's clock). PINGs are answered here.

        Raises:
            WireError: the other side broke the protocol; every later call raises it again.
        """
        if self._broken is not None:
            raise self._broken
        self.received += len(data)
        if self.received - self._acknowledged >= ACK_EVERY:
            self._acknowledge()
        try:
            return [event for item in self._reader.feed(data) for event in self._accept(item, clock)]
        except WireError as error:
            self._broken = error
            raise

    def _accept(self, item: tuple[int, int, bytes], clock: float) -> list[tuple[int, int, Any]]:
        kind, channel, payload = item
        if kind == DATA:
            left = self._may_receive.get(channel)
            if left is None or left < len(payload):
                raise WireError("DATA of %d bytes on channel %d with a credit of %s" % (len(payload), channel, left))
            self._may_receive[channel] = left - len(payload)
            return [(DATA, channel, payload)]
        if kind == CONTROL:
            self._count_values(payload)
            return [(CONTROL, 0, decode_message(payload))]
        if kind == CREDIT:
            # A grant may cross with our END, and is then ignored.
            if channel in self._may_send:
                self._may_send[channel] += _CREDIT.unpack(payload)[0]
            return [(CREDIT, channel, None)]
        if kind == END:
            if self._may_receive.pop(channel, None) is None:
                raise WireError("END of channel %d, which is not open" % channel)
            return [(END, channel, None)]
        if kind == PING:
            self._out.append(frame(PONG, 0, payload + _CLOCK.pack(clock)))
            self._acknowledge()
            return []
        if kind == ACK:
            if self._unacknowledged is not None:
                self._unacknowledged.acknowledge(_COUNT.unpack(payload)[0])
            return []
        return [(PONG, 0, (_CLOCK.unpack(payload[:8])[0], _CLOCK.unpack(payload[8:])[0]))]

    def _count_values(self, payload: bytes) -> None:
        # Every value but the first of a list or object follows a comma, and every list or object has a bracket.
        if self._max_values and sum(payload.count(mark) for mark in (b",", b"[", b"{")) > self._max_values:
            raise WireError("control message of more than %d values" % self._max_values)

    def _acknowledge(self) -> None:
        if self._unacknowledged is not None:
            self._acknowledged = self.received
            self._out.append(frame(ACK, 0, _COUNT.pack(self.received)))


def encode_shared(members: dict[str, Any]) -> bytes:
    """Encode members that are the same in messages to many nodes, for `Session.send`."""
    return _encode(members)[:-1].encode("ascii") + b","


def decode_message(payload: bytes) -> dict[str, Any]:
    """Return the message in a payload, an object with a `type`; raises WireError."""
    try:
        text = payload.decode("utf-8")
        message, end = _decode(text)
        if end != len(text):
            raise ValueError("it goes on after its end")
    except (ValueError, RecursionError) as error:
        raise WireError("control message is not JSON: %s" % error) from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise WireError("control message is not an object with a type")
    return message


class Unacknowledged:
    """Sent pieces that are kept until the other side acknowledges them, except the first `sent` bytes."""

    def __init__(self, sent: int = 0) -> None:
        self._chunks: list[bytes] = []
        self._first = self._end = sent

    def add(self, pieces: list[bytes]) -> None:
        """Keep pieces that are sent now. A piece that goes to many nodes is one object, and stored once."""
        self._chunks += pieces
        self._end += sum(map(len, pieces))

    @property
    def size(self) -> int:
        return self._end - self._first

    def acknowledge(self, count: int) -> None:
        """Drop the first `count` bytes of the stream; raises WireError if fewer were sent."""
        self._check(count)
        dropped = 0
        for chunk in self._chunks:
            if self._first + len(chunk) > count:
                break
            self._first += len(chunk)
            dropped += 1
        del self._chunks[:dropped]

    def after(self, count: int) -> bytes:
        """Return the bytes after the first `count` of the stream; raises WireError if they are not kept or were never sent."""
        self._check(count)
        return b"".join(self._chunks)[count - self._first :]

    def _check(self, count: int) -> None:
        if not self._first <= count <= self._end:
            raise WireError("%d bytes acknowledged of %d sent, with those from %d kept" % (count, self._end, self._first))


def resume_frame(received: int) -> bytes:
    """Return the first frame on a new channel, after `received` bytes of frames on the old ones."""
    return frame(RESUME, 0, _COUNT.pack(received))


def resume_count(data: bytes) -> int:
    """Return the count in a frame of RESUME_SIZE bytes; raises WireError."""
    magic, kind, _, length = HEADER.unpack_from(data)
    if (magic, kind, length) != (frames.MAGIC, RESUME, _COUNT.size):
        raise WireError("a new channel begins with %s instead of RESUME" % frames.KINDS.get(kind, "nothing known"))
    return int(_COUNT.unpack_from(data, HEADER.size)[0])
