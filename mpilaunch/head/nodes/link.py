"""The link to one node's daemon: a channel below, a wire session, and events for the launch above.

A link knows nothing of mapping or output. It reports exactly once that the node is gone. A channel that is lost while ranks
run may be replaced (`head.nodes.reconnect`): the session continues where it stopped, and the launch does not notice.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, Protocol

from mpilaunch.agent import Channel, ChannelEnd
from mpilaunch.head.nodes.link_channel import LinkChannel
from mpilaunch.head.nodes.messages import DAEMON_MESSAGES
from mpilaunch.head.observe.clock import NodeClock
from mpilaunch.head.tasks import settle
from mpilaunch.hosts.allocation import Node
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.wire.frames import CONTROL, CREDIT, DATA, END, GO, PONG, WireError
from mpilaunch.wire.messages import accepts
from mpilaunch.wire.session import Session

LOST = "its connection was lost"
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Pause before the first and before later retries of a connection; it doubles each time."""
ABORT_SECONDS = 10.0
"""Time in which an aborted channel must end."""
MOST_NOTES, LONGEST_NOTE = 200, 1000
"""Notes accepted from one node, and characters of each text from it; flow control does not bound these."""
MOST_VALUES, MAX_CONTROL, MAX_OF_RANK = 1 << 17, 6 << 20, 256 << 10
"""Values in one control message from a node, and its bytes, or the bytes for each slot of the node where that is more: a node
sends what its ranks put (docs/mpi.md) in one message, and the head handles a message in one turn of its loop."""
BROKE = "broke the protocol"


class LinkEvents(Protocol):
    """Events of a link, implemented by the launch."""

    def message(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Handle a valid control message; raises WireError when its content is wrong or about another node."""

    def data(self, link: NodeLink, channel: int, data: bytes) -> None:
        """Handle bytes of a rank's output, and grant them again once they are written."""

    def end_of_stream(self, channel: int) -> None:
        """Handle the end of a rank's stdout or stderr."""

    def credit(self, channel: int) -> None:
        """Send more stdin: this channel has new credit."""

    def gone(self, link: NodeLink, reason: str) -> None:
        """Handle the end of the link, for any reason; called once."""

    def crashed(self, error: BaseException) -> None:
        """Handle a fault of our own in what handles a node's data."""


class Replacement:
    """How a lost channel may be replaced, and what is known of its loss.

    Attributes:
        seconds: within which it may be replaced, 0 for not at all.
        begin: replaces the channel of a link or gives the link up; called with the reason of the loss, "" when only the exit
            code may tell it.
        secret: with it, head and daemon prove to each other that a new channel belongs to the job.
        path, error: of the socket where the daemon waits for a new channel, or why there is none.
        allowed: whether a lost channel is replaced now.
        reason: why the channel was aborted, "" if it was not.
        lost_at: when the channel was lost; with several losses and no byte in between, the time of the first.
        resumed_at: how many bytes had been received when the channel was last replaced; None: it never was.
    """

    def __init__(self, seconds: float = 0.0, begin: Callable[[NodeLink, str], None] | None = None) -> None:
        self.seconds, self.begin = seconds, begin
        self.secret = os.urandom(32)
        self.path = self.error = self.reason = ""
        self.allowed = False
        self.lost_at = 0.0
        self.resumed_at: int | None = None


class NodeLink:
    """One node's daemon as the head sees it.

    Attributes:
        channel: the bytes to and from the daemon.
        session: the wire; what is sent directly through it leaves with the next `channel.flush`.
        state: the node's state, as in `DAEMON_MESSAGES`.
        broke: how it broke the protocol, or "".
        facts: the facts from the daemon's hello, None before it.
        given_up: the node was reported as gone.
        first_news: done when the daemon has reported, or can no longer report.
        handlers: the messages of the daemon that the link itself handles; all others go to `events`.
        start_seconds: the time from contacting the node to the daemon's first report.
    """

    def __init__(self, node: Node, events: LinkEvents, replacement: Replacement) -> None:
        self.node, self._events = node, events
        self.session = Session(max(MAX_CONTROL, MAX_OF_RANK * len(node.slots)), MOST_VALUES)
        self.channel = self._make_channel()
        self.replacement = replacement
        self.state, self.broke = "contacted", ""
        self.facts: NodeFacts | None = None
        self.given_up = self._stood_by = False
        self.first_news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.start_seconds = 0.0
        self.clock = NodeClock()
        self._notes = 0
        self.handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "hello": self._take_hello, "listening": self._take_listening
        }  # fmt: skip

    def _make_channel(self) -> LinkChannel:
        return LinkChannel(self.session, self)

    def opened(self, channel: Channel, first: bytes) -> None:
        """Take over an open channel and send its first bytes: the daemon's bundle, or GO for a standby daemon."""
        self._stood_by = first == GO
        self.channel.open(channel, first)

    def send(self, message: dict[str, Any], shared: bytes = b"") -> None:
        """Send a control message; `shared` as for `Session.send`."""
        self.session.send(message, shared)
        self.channel.flush()

    def ping(self) -> None:
        self.session.send_ping(time.monotonic())
        self.channel.flush()

    def send_input(self, channel: int, data: bytes) -> None:
        """Send bytes of stdin, empty for its end."""
        if data:
            self.session.send_data(channel, data)
        else:
            self.session.send_end(channel)
        self.channel.flush()

    @property
    def attach(self) -> dict[str, Any] | None:
        """The member of `prepare` that lets a daemon accept a new channel; None when it must not."""
        how = self.replacement
        return {"secret": how.secret.hex(), "seconds": how.seconds} if how.seconds else None

    def keep(self) -> None:
        """Replace a lost channel from now on, since ranks run."""
        self.replacement.allowed = self.replacement.seconds > 0
        if self.replacement.allowed:
            self.session.keep()

    def resume(self, channel: Channel, count: int) -> None:
        """Continue over a new channel, after the daemon has received `count` bytes; raises WireError."""
        unacknowledged = self.session.resend(count)
        self.replacement.resumed_at = self.session.received
        self._stood_by = False  # the keeper does not own the new channel
        self.channel.replace(channel, unacknowledged)
        self.ping()

    def release(self) -> None:
        """Let the daemon end, by the end of its stdin; one that may wait for a new channel or stood by gets a message too.

        The keeper sees to the end of a standby daemon; for this link it has ended.
        """
        kept, self.replacement.allowed = self.replacement.allowed, False
        if not self.channel.living:
            return
        if kept or self._stood_by:
            self.send({"type": "release"})
        self.channel.write_eof()
        if self._stood_by:
            self.channel.closed(ChannelEnd(0))

    def lose(self, reason: str) -> None:
        """Abort a channel that no longer answers; it is replaced where that is allowed, else the node is gone."""
        if self.replacement.allowed and self.channel.opened:
            self.replacement.reason = reason
            self.channel.abort(ABORT_SECONDS, reason)
        else:
            self.give_up(reason)

    def give_up(self, reason: str) -> None:
        """Report the node as gone and abort the channel."""
        self._go(reason)
        self.channel.abort()

    @property
    def reported(self) -> bool:
        """Whether the daemon has sent its hello."""
        return self.facts is not None

    @property
    def how_ended(self) -> str:
        """How the channel ended, judged by its exit code; kubectl exits with 0 when its stream is lost."""
        end = self.channel.end
        code = None if end is None or self.replacement.resumed_at is not None else end.exit_code
        return f"its daemon ended with code {code}" if code else LOST

    # ChannelOwner

    def take(self, kind: int, channel: int, value: Any) -> None:
        if kind == DATA:
            self._events.data(self, channel, value)
        elif kind == CONTROL:
            self._take_message(value)
        elif kind == END:
            self._events.end_of_stream(channel)
        elif kind == CREDIT:
            self._events.credit(channel)
        elif kind == PONG:
            sent, node = value
            self.clock.answered(sent, self.channel.last_heard, node)

    def break_off(self, error: WireError) -> None:
        self.broke = self.broke or f"{BROKE}: {error}"
        self.give_up(self.broke)

    def crash(self, error: Exception) -> None:
        self._events.crashed(error)

    def channel_ended(self) -> None:
        """Replace the channel, or report the node as gone."""
        how, end = self.replacement, self.channel.end
        reason, how.reason = how.reason or (end.error if end else ""), ""
        if how.allowed and not self.given_up and how.begin is not None:
            if self.session.received != how.resumed_at:
                how.lost_at = time.monotonic()
            how.begin(self, reason)
        else:
            self._go(reason or self.how_ended)

    # Messages

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
        self.clock.greeted(self.channel.last_heard, message["clock"])
        self.ping()
        settle(self.first_news, None)

    def _take_listening(self, message: dict[str, Any]) -> None:
        self.replacement.path, self.replacement.error = message["path"], message["error"][:LONGEST_NOTE]

    def _go(self, reason: str) -> None:
        if not self.given_up:
            self.given_up = True
            settle(self.first_news, None)
            self._events.gone(self, reason)


Handler = Callable[[NodeLink, dict[str, Any]], None]
"""Acts on a message of a daemon; raises WireError for one that is wrong."""
