"""The channel below a link: the bytes of one daemon in both directions, over one channel of an agent and those that replace it.

What a node sends is taken in slices, and its channel is not read meanwhile: no node holds the loop, and none fills the memory.
It knows the frames of the wire, but no message.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Protocol

from mpilaunch.agent import Channel, ChannelEnd
from mpilaunch.head.tasks import Slices, settle
from mpilaunch.wire.frames import MARKER, WireError
from mpilaunch.wire.session import Session

LAST_OUTPUT = 4096
"""Bytes of the banner and of stderr that are kept to explain a failure."""
PIECE = 64 << 10
"""Bytes that are made into frames in one go."""
MOST_UNREAD = 192 << 20
"""Bytes queued for a node that does not read or acknowledge: three control messages of the greatest length."""


class ChannelOwner(Protocol):
    """What a channel's owner, the link, is told."""

    @property
    def given_up(self) -> bool:
        """Whether nothing of the node is taken any longer."""

    def take(self, kind: int, channel: int, value: Any) -> None:
        """Handle an event of the session; raises WireError."""

    def break_off(self, error: WireError) -> None:
        """Handle bytes that break the protocol."""

    def crash(self, error: Exception) -> None:
        """Handle a fault of our own."""

    def give_up(self, reason: str) -> None:
        """Handle a node that does not read."""

    def channel_ended(self) -> None:
        """Handle the end of the channel, after all its data; `LinkChannel.end` says how."""


class LinkChannel:
    """The `ChannelEvents` of a link's channel.

    Attributes:
        session: the wire; what is sent directly through it leaves with the next `flush`.
        last_heard: the head's monotonic time of the last byte.
        banner, stderr: the last output of the node before the wire began, and that of the node or its agent on stderr.
        end: how the channel ended, None while it is open.
        ended: done when the channel has ended.
    """

    def __init__(self, session: Session, owner: ChannelOwner) -> None:
        self.session, self._owner = session, owner
        self.last_heard = time.monotonic()
        self.banner = self.stderr = b""
        self.end: ChannelEnd | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._channel: Channel | None = None
        self._waiting_end: ChannelEnd | None = None
        self._unread: int | None = None
        self._in_frames, self._reading = False, True
        self._pieces: deque[memoryview] = deque()
        self._untaken: deque[tuple[int, int, Any]] = deque()
        self._slices = Slices(self._take_next, self._after_slice)

    @property
    def opened(self) -> bool:
        """Whether there was a channel."""
        return self._channel is not None

    @property
    def living(self) -> bool:
        """Whether there is a channel, and it is open."""
        return self._channel is not None and self.end is None

    @property
    def last_output(self) -> str:
        """The last output on stderr, else the banner."""
        return (self.stderr.strip() or self.banner.strip()).decode("utf-8", "replace")

    def open(self, channel: Channel, first: bytes) -> None:
        """Use a channel, and send its first bytes."""
        self._channel = channel
        if first:
            channel.write(first)

    def replace(self, channel: Channel, first: bytes) -> None:
        """Continue over another channel in place of one that has ended, and send its first bytes."""
        self.end, self._unread, self._reading = None, None, True
        self.ended = asyncio.get_running_loop().create_future()
        self.last_heard = time.monotonic()
        self.open(channel, first)

    def write(self, data: bytes) -> None:
        """Write bytes to the node, if its channel is open."""
        if self._channel is not None and self.end is None:
            self._channel.write(data)

    def flush(self) -> None:
        """Write the session's pending bytes."""
        data = self.session.data_to_send()
        if data and self.living:
            self.write(data)
            if self._unread is not None:
                self._unread += len(data)
        if (self._unread or 0) > MOST_UNREAD or self.session.unacknowledged > MOST_UNREAD:
            self.session.stop_keeping()
            self._owner.give_up(f"has not read {MOST_UNREAD:,} bytes that were sent to it")

    def write_eof(self) -> None:
        if self._channel is not None:
            self._channel.write_eof()

    def abort(self, limit: float | None = None, reason: str = "") -> None:
        """End the channel at once; give the node up, for this reason, if it has not ended within `limit` seconds."""
        if (channel := self._channel) is None:
            return
        channel.abort()
        if limit is not None:
            asyncio.get_running_loop().call_later(limit, self._give_up_stuck, channel, reason)

    def _give_up_stuck(self, channel: Channel, reason: str) -> None:
        if channel is self._channel and self.end is None:
            self._owner.give_up(reason)

    # ChannelEvents

    def data_received(self, data: bytes) -> None:
        """Decode bytes from the daemon; everything before the marker is the login banner."""
        self.last_heard = time.monotonic()
        if not self._in_frames:
            self.banner += data
            start = self.banner.find(MARKER)
            if start < 0:
                self.banner = self.banner[-LAST_OUTPUT - len(MARKER) :]
                return
            self._in_frames = True
            data, self.banner = self.banner[start + len(MARKER) :], self.banner[:start][-LAST_OUTPUT:]
        self._pieces.extend(memoryview(data)[place : place + PIECE] for place in range(0, len(data), PIECE))
        self._slices.run()

    def _take_next(self) -> bool:
        """Handle the next event of what has been received; return whether there was anything."""
        try:
            if self._owner.given_up:
                self._pieces.clear()
                self._untaken.clear()
                return False
            if self._untaken:
                self._owner.take(*self._untaken.popleft())
            elif self._pieces:
                self.last_heard = time.monotonic()
                self._untaken.extend(self.session.receive_data(self._pieces.popleft(), self.last_heard))
            else:
                return False
        except WireError as error:
            self._owner.break_off(error)
        except Exception as error:
            self._owner.crash(error)
        return True

    def _after_slice(self, left: bool) -> None:
        """Send what is to be sent, read no more than is taken, and close what has ended once all is taken."""
        self.flush()
        if left:
            self.read(False)
        elif self._waiting_end is not None:
            end, self._waiting_end = self._waiting_end, None
            self.closed(end)
        else:
            self.read(True)

    def read(self, wanted: bool) -> None:
        """Read the channel, or let it wait."""
        if wanted != self._reading and self._channel is not None and self.end is None:
            self._reading = wanted
            (self._channel.resume_reading if wanted else self._channel.pause_reading)()

    def stderr_received(self, data: bytes) -> None:
        self.stderr = (self.stderr + data)[-LAST_OUTPUT:]

    def pause_writing(self) -> None:
        """Count the bytes sent from now on: credits bound streams, but nothing else bounds control messages."""
        self._unread = self._unread or 0

    def resume_writing(self) -> None:
        self._unread = None

    def closed(self, end: ChannelEnd) -> None:
        """Tell the owner, once all data is taken."""
        if self.end is not None:
            return
        if self._slices.busy:
            self._waiting_end = end
            return
        self.end = end
        settle(self.ended, None)
        self._owner.channel_ended()
