"""The link to one node's daemon: a channel below, a wire session, and events for the launch above.

A link knows nothing of mapping or output. It reports exactly once that the node is gone. A channel that is lost while ranks
run may be replaced (`head.nodes.reconnect`): the session continues where it stopped, and the launch does not notice. What a
node sends is taken in slices, and its channel is not read meanwhile: no node holds the loop, and none fills the memory.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from mpilaunch.agent import Channel, ChannelEnd
from mpilaunch.head.nodes.messages import DAEMON_MESSAGES
from mpilaunch.head.observe.clock import NodeClock
from mpilaunch.head.tasks import Slices, settle
from mpilaunch.hosts.allocation import Node
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.wire.frames import CONTROL, CREDIT, DATA, END, GO, MARKER, PONG, WireError
from mpilaunch.wire.messages import accepts
from mpilaunch.wire.session import Session

LOST = "its connection was lost"
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Pause before the first and before later retries of a connection; it doubles each time."""
ABORT_SECONDS = 10.0
"""Time in which an aborted channel must end."""
LAST_OUTPUT = 4096
"""Bytes of the banner and of stderr that are kept to explain a failure."""
MOST_NOTES, LONGEST_NOTE = 200, 1000
"""Notes accepted from one node, and characters of each text from it; flow control does not bound these."""
MOST_VALUES, MAX_CONTROL, MAX_OF_RANK = 1 << 17, 6 << 20, 256 << 10
"""Values in one control message from a node, and its bytes, or the bytes for each slot of the node where that is more: a node
sends what its ranks put (docs/mpi.md) in one message, and the head handles a message in one turn of its loop."""
PIECE = 64 << 10
"""Bytes that are made into frames in one go."""
MOST_UNREAD = 192 << 20
"""Bytes queued for a node that does not read or acknowledge: three control messages of the greatest length."""
BROKE = "broke the protocol"


class LinkEvents(Protocol):
    """Events of a link, implemented by the launch."""

    def message(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Handle a valid control message; raises WireError when its content is wrong or about another node."""

    def data(self, link: NodeLink, channel: int, data: bytes) -> None:
        """Handle bytes of a rank's output, and grant them again once they are written."""

    def end_of_stream(self, channel: int) -> None:
        """Handle the end of a rank's stdout or stderr."""

    def credit(self) -> None:
        """Send more stdin: a channel has new credit."""

    def gone(self, link: NodeLink, reason: str) -> None:
        """Handle the end of the link, for any reason; called once."""

    def crashed(self, error: BaseException) -> None:
        """Handle a fault of our own in what handles a node's data."""


class NodeLink:
    """One node's daemon as the head sees it, and the `ChannelEvents` of its channel.

    Attributes:
        session: the wire; what is sent directly through it leaves with the next `flush`.
        state: the node's state, as in `DAEMON_MESSAGES`.
        broke: how it broke the protocol, or "".
        facts: the facts from the daemon's hello, None before it.
        given_up: the node was reported as gone.
        end: how the channel ended, None while it is open.
        last_heard: the head's monotonic time of the last byte.
        first_news: done when the daemon has reported, or can no longer report.
        ended: done when the channel has ended.
        handlers: the messages of the daemon that the link itself handles; all others go to `events`.
        start_seconds: the time from contacting the node to the daemon's first report.
        reconnect_time: seconds within which a lost channel may be replaced, 0 for not at all.
        attach_secret: with it, head and daemon prove to each other that a new channel belongs to the job.
        attach_path, attach_error: path of the socket where the daemon waits for a new channel, or why there is none.
        lost_at: when the channel was lost; with several losses and no byte in between, the time of the first.

    Args:
        reconnect: replaces the channel or gives the link up; called with the reason of the loss, "" when only the exit code
            may tell it.
    """

    def __init__(
        self,
        node: Node,
        events: LinkEvents,
        reconnect_time: float = 0.0,
        reconnect: Callable[[NodeLink, str], None] | None = None,
    ) -> None:
        self.node = node
        self.start_seconds = 0.0
        self.reconnect_time = reconnect_time
        self.attach_secret = os.urandom(32)
        self.attach_path = self.attach_error = ""
        self.lost_at = 0.0
        self.given_up = self._keeps = self._stood_by = self._in_frames = False
        self._reconnect, self._loss_reason = reconnect, ""
        self._resumed_at: int | None = None
        self.state, self.broke = "contacted", ""
        self._unread: int | None = None
        self.facts: NodeFacts | None = None
        self.end: ChannelEnd | None = None
        self.last_heard = time.monotonic()
        loop = asyncio.get_running_loop()
        self.first_news: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.stderr = self.banner = b""
        self._events = events
        self.session = Session(max(MAX_CONTROL, MAX_OF_RANK * len(node.slots)), MOST_VALUES)
        self._channel: Channel | None = None
        self._unread_pieces: deque[memoryview] = deque()
        self._untaken: deque[tuple[int, int, Any]] = deque()
        self._slices = Slices(self._take_next, self._after_slice)
        self._reading = True
        self._waiting_end: ChannelEnd | None = None
        self._notes = 0
        self.clock = NodeClock()
        self.handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "hello": self._take_hello, "listening": self._take_listening
        }  # fmt: skip

    def opened(self, channel: Channel, first: bytes) -> None:
        """Take over an open channel and send its first bytes: the daemon's bundle, or GO for a standby daemon."""
        self._channel = channel
        self._stood_by = first == GO
        if first:
            channel.write(first)

    def send(self, message: dict[str, Any], shared: bytes = b"") -> None:
        """Send a control message; `shared` as for `Session.send`."""
        self.session.send(message, shared)
        self.flush()

    def ping(self) -> None:
        self.session.send_ping(time.monotonic())
        self.flush()

    def send_input(self, channel: int, data: bytes) -> None:
        """Send bytes of stdin, empty for its end."""
        if data:
            self.session.send_data(channel, data)
        else:
            self.session.send_end(channel)
        self.flush()

    def flush(self) -> None:
        """Write the session's pending bytes to the channel."""
        data = self.session.data_to_send()
        if data and self._channel is not None and self.end is None:
            self._channel.write(data)
            if self._unread is not None:
                self._unread += len(data)
        if (self._unread or 0) > MOST_UNREAD or self.session.unacknowledged > MOST_UNREAD:
            self.session.stop_keeping()
            self.give_up(f"has not read {MOST_UNREAD:,} bytes that were sent to it")

    @property
    def attach(self) -> dict[str, Any] | None:
        """The member of `prepare` that lets a daemon accept a new channel; None when it must not."""
        return {"secret": self.attach_secret.hex(), "seconds": self.reconnect_time} if self.reconnect_time else None

    def keep(self) -> None:
        """Replace a lost channel from now on, since ranks run."""
        self._keeps = self.reconnect_time > 0
        if self._keeps:
            self.session.keep()

    def resume(self, channel: Channel, count: int) -> None:
        """Continue over a new channel, after the daemon has received `count` bytes; raises WireError."""
        unacknowledged = self.session.resend(count)
        self._resumed_at = self.session.received
        self._stood_by = False  # the keeper does not own the new channel
        self._channel, self.end, self._unread, self._reading = channel, None, None, True
        self.ended = asyncio.get_running_loop().create_future()
        self.last_heard = time.monotonic()
        if unacknowledged:
            channel.write(unacknowledged)
        self.ping()

    def release(self) -> None:
        """Let the daemon end, by the end of its stdin; one that may wait for a new channel or stood by gets a message too.

        The keeper sees to the end of a standby daemon; for this link it has ended.
        """
        keeps, self._keeps = self._keeps, False
        if self._channel is None or self.end is not None:
            return
        if keeps or self._stood_by:
            self.send({"type": "release"})
        self._channel.write_eof()
        if self._stood_by:
            self.closed(ChannelEnd(0))

    def lose(self, reason: str) -> None:
        """Abort a channel that no longer answers; it is replaced where that is allowed, else the node is gone."""
        if self._keeps and self._channel is not None:
            self._loss_reason = reason
            self._channel.abort()
            asyncio.get_running_loop().call_later(ABORT_SECONDS, self._give_up_stuck, self._channel, reason)
        else:
            self.give_up(reason)

    def _give_up_stuck(self, channel: Channel, reason: str) -> None:
        if channel is self._channel and self.end is None:
            self.give_up(reason)

    def give_up(self, reason: str) -> None:
        """Report the node as gone and abort the channel."""
        self._go(reason)
        if self._channel is not None:
            self._channel.abort()

    @property
    def reported(self) -> bool:
        """Whether the daemon has sent its hello."""
        return self.facts is not None

    @property
    def living(self) -> bool:
        """Whether the channel is open."""
        return self._channel is not None and self.end is None

    @property
    def last_output(self) -> str:
        """The last output of the node or its agent on stderr, else the banner."""
        return (self.stderr.strip() or self.banner.strip()).decode("utf-8", "replace")

    @property
    def how_ended(self) -> str:
        """How the channel ended, judged by its exit code; kubectl exits with 0 when its stream is lost."""
        code = None if self.end is None or self._resumed_at is not None else self.end.exit_code
        return f"its daemon ended with code {code}" if code else LOST

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
        self._unread_pieces.extend(memoryview(data)[place : place + PIECE] for place in range(0, len(data), PIECE))
        self._slices.run()

    def _take_next(self) -> bool:
        """Handle the next event of what has been received; return whether there was anything."""
        try:
            if self.given_up:
                self._unread_pieces.clear()
                self._untaken.clear()
                return False
            if self._untaken:
                self._take(*self._untaken.popleft())
            elif self._unread_pieces:
                self.last_heard = time.monotonic()
                self._untaken.extend(self.session.receive_data(self._unread_pieces.popleft(), self.last_heard))
            else:
                return False
        except WireError as error:
            self.broke = self.broke or f"{BROKE}: {error}"
            self.give_up(self.broke)
        except Exception as error:
            self._events.crashed(error)
        return True

    def _after_slice(self, left: bool) -> None:
        """Send what is to be sent, read no more than is taken, and close what has ended once all is taken."""
        self.flush()
        if left:
            self.pause_reading()
        elif self._waiting_end is not None:
            end, self._waiting_end = self._waiting_end, None
            self.closed(end)
        else:
            self.resume_reading()

    def _take(self, kind: int, channel: int, value: Any) -> None:
        if kind == DATA:
            self._events.data(self, channel, value)
        elif kind == CONTROL:
            self._take_message(value)
        elif kind == END:
            self._events.end_of_stream(channel)
        elif kind == CREDIT:
            self._events.credit()
        elif kind == PONG:
            sent, node = value
            self.clock.answered(sent, self.last_heard, node)

    def pause_reading(self) -> None:
        if self._reading and self._channel is not None and self.end is None:
            self._reading = False
            self._channel.pause_reading()

    def resume_reading(self) -> None:
        if not self._reading and self._channel is not None and self.end is None:
            self._reading = True
            self._channel.resume_reading()

    def stderr_received(self, data: bytes) -> None:
        self.stderr = (self.stderr + data)[-LAST_OUTPUT:]

    def pause_writing(self) -> None:
        """Count the bytes sent from now on: credits bound streams, but nothing else bounds control messages."""
        self._unread = self._unread or 0

    def resume_writing(self) -> None:
        self._unread = None

    def closed(self, end: ChannelEnd) -> None:
        """Replace the channel, or report the node as gone."""
        if self.end is not None:
            return
        if self._slices.busy:  # after all data
            self._waiting_end = end
            return
        self.end = end
        settle(self.ended, None)
        reason, self._loss_reason = self._loss_reason or end.error, ""
        if self._keeps and not self.given_up and self._reconnect is not None:
            if self.session.received != self._resumed_at:
                self.lost_at = time.monotonic()
            self._reconnect(self, reason)
        else:
            self._go(reason or self.how_ended)

    def _take_message(self, message: dict[str, Any]) -> None:
        if not accepts(self.state, message, DAEMON_MESSAGES, strict=True):
            return
        if message["type"] == "note":
            message["text"] = message["text"][:LONGEST_NOTE]
            if not self.may_note():
                return
        if own := self.handlers.get(message["type"]):
            own(message)
        else:
            self._events.message(self, message)

    def may_note(self) -> bool:
        """Count a note about this node, and return whether it may be shown."""
        self._notes += 1
        return self._notes <= MOST_NOTES

    def _take_hello(self, message: dict[str, Any]) -> None:
        try:
            self.facts = NodeFacts.from_message(message["facts"])
        except ValueError as error:
            raise WireError(f"'hello' does not fit: {str(error)[:LONGEST_NOTE]}") from None
        self.state = "reported"
        self.clock.greeted(self.last_heard, message["clock"])
        self.ping()
        settle(self.first_news, None)

    def _take_listening(self, message: dict[str, Any]) -> None:
        self.attach_path, self.attach_error = message["path"], message["error"][:LONGEST_NOTE]

    def _go(self, reason: str) -> None:
        if not self.given_up:
            self.given_up = True
            settle(self.first_news, None)
            self._events.gone(self, reason)


Handler = Callable[[NodeLink, dict[str, Any]], None]
"""Acts on a message of a daemon; raises WireError for one that is wrong."""
