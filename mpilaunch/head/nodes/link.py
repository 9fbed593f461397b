"""The link to one node's daemon: channel below, session in the middle, events for the launch above.

A link knows the wire and nothing of ranks' meaning, mapping or output. It keeps the facts, the clock offset and the last words
of its node, and it tells exactly once that the node is gone. A channel that is lost while ranks run may be made again: then the
session goes on where it stopped, and nobody above learns of it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from math import isfinite
from typing import Any, Protocol

from mpilaunch.agent import Channel, ChannelEnd
from mpilaunch.head.nodes.messages import DAEMON_MESSAGES
from mpilaunch.head.tasks import settle
from mpilaunch.hosts.allocation import Node
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.wire.frames import CONTROL, CREDIT, DATA, END, GO, MARKER, PONG, WireError
from mpilaunch.wire.messages import handler_of
from mpilaunch.wire.session import Session

LOST = "its connection was lost"
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds before a connection that was dropped is tried again; the pause doubles each time."""
LOSING = 10.0
"""Seconds in which a channel that was aborted must have ended."""
LAST_WORDS = 4096
"""Bytes of banner and of stderr that are kept to explain a failure."""
LONGEST_ATTACH_PATH = 107
"""Bytes that the path of a socket may have (unix(7))."""
MOST_NOTES, LONGEST_NOTE = 200, 1000
"""Notes of one node that are taken, and characters of each text of a node: neither has credit."""
MOST_VALUES = 1 << 20
"""Values in one control message of a node."""
MOST_UNREAD = 192 << 20
"""Bytes that wait for a node that does not read, or does not acknowledge; three of the longest control messages."""
BROKE = "broke the protocol"


class LinkEvents(Protocol):
    """What the launch does with a link's news."""

    def message(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Take a control message other than hello, which the state of the link allows."""

    def data(self, link: NodeLink, channel: int, data: bytes) -> None:
        """Take bytes of a rank's output; they must be granted again with `NodeLink.grant` once they are used."""

    def end(self, link: NodeLink, channel: int) -> None:
        """Be told that a rank's output is at its end."""

    def credit(self, link: NodeLink, channel: int) -> None:
        """Be told that more of stdin may be sent on a channel."""

    def gone(self, link: NodeLink, reason: str) -> None:
        """Be told once that the node cannot be heard any more, whatever the reason."""


class NodeLink:
    """One node's daemon as the head sees it. It is the `ChannelEvents` of its own channel.

    Attributes:
        node: the node.
        state: what the node may send now, as in `DAEMON_MESSAGES`.
        broke: how it broke the protocol, "" where it did not.
        facts: what the daemon found there, None before its hello.
        end: how the channel ended, None while it has not.
        last_heard: the head's monotonic time of the last byte.
        first_news: done when the daemon has reported, or can no more.
        ended: done when the channel has ended.
        reconnect_time: seconds that a lost channel has to be made again, 0 for none.
        attach_secret: proves to the daemon, and the daemon to us, that a new channel is the job's.
        attach_path: of the socket at which the daemon waits then, "" where it cannot.
        why_no_attach: the reason.
        lost_at: when the channel was lost, of those that were lost one after the other and brought nothing the first.

    Args:
        reconnect: has the channel made again, and is told why it was lost, "" where only its exit code may tell; one that
            cannot be made is given up.
    """

    def __init__(
        self,
        node: Node,
        events: LinkEvents,
        reconnect_time: float = 0.0,
        reconnect: Callable[[NodeLink, str], None] | None = None,
    ) -> None:
        self.node = node
        self.reconnect_time = reconnect_time
        self.attach_secret = os.urandom(32)
        self.attach_path = ""
        self.why_no_attach = ""
        self._reconnect = reconnect
        self.lost_at = 0.0
        self._keeps = self._stood_by = False
        self._why_lost = ""
        self._resumed_at: int | None = None
        self.state = "contacted"
        self.broke = ""
        self._unread: int | None = None
        self.facts: NodeFacts | None = None
        self.end: ChannelEnd | None = None
        self.last_heard = time.monotonic()
        loop = asyncio.get_running_loop()
        self.first_news: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.stderr = b""
        self.banner = b""
        self._events = events
        self._session = Session(max_values=MOST_VALUES)
        self._channel: Channel | None = None
        self._in_frames = False
        self._gone = False
        self._notes = 0
        self._round_trip = float("inf")
        self._offset = 0.0

    # What the launch asks for

    def opened(self, channel: Channel, first: bytes) -> None:
        """Send what comes first: the bundle that the daemon is made of, or the word that calls one that stood by."""
        self._channel = channel
        self._stood_by = first == GO
        if first:
            channel.write(first)

    def send(self, message: dict[str, Any], shared: bytes = b"") -> None:
        """Send a control message; `shared` as for `Session.send`."""
        self._session.send(message, shared)
        self.flush()

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._session.send_ping(time.monotonic())
        self.flush()

    def open_output(self, channel: int, window: int) -> None:
        """Expect a rank's stdout or stderr."""
        self._session.open_receiving(channel, window)

    def open_input(self, channel: int, window: int) -> None:
        """Be ready to send a rank's stdin."""
        self._session.open_sending(channel, window)

    def input_credit(self, channel: int) -> int:
        """Return how many bytes of stdin may be sent to the rank of this channel now."""
        return self._session.credit(channel)

    def send_input(self, channel: int, data: bytes) -> None:
        """Send bytes of stdin, empty for its end."""
        if data:
            self._session.send_data(channel, data)
        else:
            self._session.send_end(channel)
        self.flush()

    def grant(self, channel: int, size: int) -> None:
        """Let the node send `size` more bytes of a stream."""
        self._session.grant(channel, size)

    def flush(self) -> None:
        """Write what the session has to say."""
        data = self._session.data_to_send()
        if data and self._channel is not None and self.end is None:
            self._channel.write(data)
            if self._unread is not None:
                self._unread += len(data)
        if (self._unread or 0) > MOST_UNREAD or self._session.unheard > MOST_UNREAD:
            self._session.keep_nothing()
            self.give_up(f"has not read {MOST_UNREAD:,} bytes that were sent to it")

    @property
    def attach(self) -> dict[str, Any] | None:
        """What `prepare` says about a lost channel."""
        return {"secret": self.attach_secret.hex(), "seconds": self.reconnect_time} if self.reconnect_time else None

    def keep(self) -> None:
        """Ranks run from now on: a lost channel is worth being made again."""
        self._keeps = self.reconnect_time > 0 and self._reconnect is not None
        if self._keeps:
            self._session.keep()

    @property
    def received(self) -> int:
        """Bytes of the daemon's frames that have come."""
        return self._session.received

    def resume(self, channel: Channel, count: int) -> None:
        """Go on over another channel, when the daemon has received `count` bytes; raises WireError."""
        unheard = self._session.resend(count)
        self._resumed_at = self._session.received
        self._stood_by = False  # the channel is our own: nobody else sees to its end
        self._channel, self.end, self._unread = channel, None, None
        self.ended = asyncio.get_running_loop().create_future()
        self.last_heard = time.monotonic()
        if unheard:
            channel.write(unheard)
        self.ping()

    def head_clock(self, node_clock: float) -> float:
        """Map the node's monotonic clock to the head's; right to half the round trip of the quickest ping."""
        return node_clock + self._offset

    def release(self) -> None:
        """Let the daemon go: the end of its stdin ends its lifeline; one that would wait for us, or stood by, is told.

        How one that stood by goes is for whoever keeps it to see: for us, it has gone.
        """
        keeps, self._keeps = self._keeps, False
        if self._channel is None or self.end is not None:
            return
        if keeps or self._stood_by:
            self.send({"type": "release"})
        self._channel.write_eof()
        if self._stood_by:
            self._end_as(ChannelEnd(0))

    def lose(self, reason: str) -> None:
        """End the channel, which does not answer any more; another may answer."""
        if self._keeps and self._channel is not None:
            self._why_lost = reason
            self._channel.abort()
            asyncio.get_running_loop().call_later(LOSING, self._give_up_stuck, self._channel, reason)
        else:
            self.give_up(reason)

    def _give_up_stuck(self, channel: Channel, reason: str) -> None:
        if channel is self._channel and self.end is None:
            self.give_up(reason)

    def give_up(self, reason: str) -> None:
        """Count the node as gone and end the channel at once."""
        self._go(reason)
        if self._channel is not None:
            self._channel.abort()

    @property
    def reported(self) -> bool:
        """The daemon is there."""
        return self.facts is not None

    @property
    def living(self) -> bool:
        """The channel was opened and has not ended."""
        return self._channel is not None and self.end is None

    @property
    def given_up(self) -> bool:
        """It is gone for good."""
        return self._gone

    @property
    def last_words(self) -> str:
        """The last that the node or its agent wrote on stderr, else the banner, as text without terminal escapes."""
        return (self.stderr.strip() or self.banner.strip()).decode("utf-8", "replace")

    @property
    def how_ended(self) -> str:
        """How the channel ended, as far as its exit code tells. kubectl says 0 when its stream is lost."""
        code = None if self.end is None or self._resumed_at is not None else self.end.exit_code
        return f"its daemon ended with code {code}" if code else LOST

    # ChannelEvents

    def data_received(self, data: bytes) -> None:
        """Take bytes of the wire; what stands before the marker is banner."""
        now = self.last_heard = time.monotonic()
        if not self._in_frames:
            self.banner += data
            start = self.banner.find(MARKER)
            if start < 0:
                self.banner = self.banner[-LAST_WORDS - len(MARKER) :]
                return
            self._in_frames = True
            data, self.banner = self.banner[start + len(MARKER) :], self.banner[:start][-LAST_WORDS:]
        try:
            for kind, channel, value in self._session.receive_data(data, now):
                if kind == DATA:
                    self._events.data(self, channel, value)
                elif kind in (CONTROL, END):
                    try:
                        if kind == CONTROL:
                            self._take_message(value, now)
                        else:
                            self._events.end(self, channel)
                    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
                        what = repr(value["type"]) if kind == CONTROL else f"the end of channel {channel}"
                        raise WireError(f"{what} does not fit: {str(error)[:LONGEST_NOTE]}") from error
                elif kind == CREDIT:
                    self._events.credit(self, channel)
                elif kind == PONG:
                    self._map_clock(value[0], value[1], now)
        except WireError as error:
            self.broke = self.broke or f"{BROKE}: {error}"
            self.give_up(self.broke)
        self.flush()

    def stderr_received(self, data: bytes) -> None:
        """Keep the node's or the agent's last words."""
        self.stderr = (self.stderr + data)[-LAST_WORDS:]

    def pause_writing(self) -> None:
        """Count what is sent from now on: credits bound streams, and nothing else bounds answers."""
        self._unread = self._unread or 0

    def resume_writing(self) -> None:
        """The node has read."""
        self._unread = None

    def closed(self, end: ChannelEnd) -> None:
        """The channel has ended."""
        if self.end is None:
            self._end_as(end)

    # Own affairs

    def _end_as(self, end: ChannelEnd) -> None:
        """Have no more to do with the channel."""
        self.end = end
        settle(self.ended, None)
        why, self._why_lost = self._why_lost or end.error, ""
        if self._keeps and not self._gone and self._reconnect is not None:
            if self._session.received != self._resumed_at:
                self.lost_at = time.monotonic()
            self._reconnect(self, why)
        else:
            self._go(why or self.how_ended)

    def _take_message(self, message: dict[str, Any], now: float) -> None:
        if not handler_of(message, DAEMON_MESSAGES, self.state, strict=True):
            return
        if message["type"] == "note":
            self._notes += 1
            message["text"] = message["text"][:LONGEST_NOTE]
            if self._notes > MOST_NOTES:
                return
        if message["type"] == "listening":
            if len(os.fsencode(message["path"])) <= LONGEST_ATTACH_PATH:
                self.attach_path, self.why_no_attach = message["path"], message["why_not"][:LONGEST_NOTE]
        elif message["type"] != "hello":
            self._events.message(self, message)
        else:
            self.facts = NodeFacts.from_message(message["facts"])
            self.state = "reported"
            # Late by the way of one message; the pong that follows tells how long that is.
            self._offset = now - message["clock"]
            self.ping()
            settle(self.first_news, None)

    def _map_clock(self, sent: float, node_clock: float, now: float) -> None:
        if 0 <= now - sent < self._round_trip and isfinite(node_clock):
            self._round_trip = now - sent
            self._offset = (sent + now) / 2 - node_clock

    def _go(self, reason: str) -> None:
        if not self._gone:
            self._gone = True
            settle(self.first_news, None)
            self._events.gone(self, reason)
