"""The keeper's links to standby daemons: they relay bytes between a daemon and the client that uses it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from mpilaunch.agent import ChannelEnd
from mpilaunch.head.nodes.daemons import ENDING
from mpilaunch.head.nodes.link import LinkEvents, NodeLink, Replacement
from mpilaunch.head.nodes.link_channel import LAST_OUTPUT, LinkChannel
from mpilaunch.head.tasks import settle
from mpilaunch.hosts.allocation import Node
from mpilaunch.relay import STDERR, STDOUT, FrameProtocol
from mpilaunch.wire.frames import KEEP, MARKER
from mpilaunch.wire.session import Session


class StandbyEvents(LinkEvents, Protocol):
    """Events of a standby link, implemented by the keeper."""

    def released(self) -> None:
        """Note that a daemon may be idle again."""


class StandbyChannel(LinkChannel):
    """The channel to a standby daemon, whose bytes go to its client.

    Attributes:
        client: the connection of the launch that uses the daemon.
    """

    client: FrameProtocol | None = None

    def __init__(self, session: Session, link: StandbyLink) -> None:
        super().__init__(session, link)
        self._link = link

    def data_received(self, data: bytes) -> None:
        """Relay the daemon's bytes to its client, or look for the sign that it is idle."""
        if self.client is not None:
            self.banner = (self.banner + data[-len(MARKER) :])[-len(MARKER) :]
            self.client.send_frame(STDOUT, data)
        else:
            self.banner = (self.banner + data)[-LAST_OUTPUT:]
            self._link.stand_by()

    def stderr_received(self, data: bytes) -> None:
        """Relay the daemon's stderr to its client, or keep the last of it."""
        if self.client is not None:
            self.client.send_frame(STDERR, data)
        else:
            super().stderr_received(data)

    def pause_writing(self) -> None:
        """Let the client wait until the daemon has read more."""
        if self.client is not None:
            self.client.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.client is not None:
            self.client.transport.resume_reading()

    def closed(self, end: ChannelEnd) -> None:
        """Report the end of the channel to the client and the keeper."""
        if self.client is not None:
            self.client.send_end(end)
            self._link.released()
        super().closed(end)


class StandbyLink(NodeLink):
    """The link to one daemon of the pool.

    Attributes:
        released: notes that a daemon may be idle again.
        stands_by: the daemon has started; it is idle or in use.
        leaving: its client has finished with it, and it has not reported that it is idle again.
    """

    channel: StandbyChannel
    stands_by = leaving = False
    _overdue: asyncio.TimerHandle | None = None

    def __init__(self, node: Node, events: StandbyEvents) -> None:
        super().__init__(node, events, Replacement())
        self.released = events.released

    def _make_channel(self) -> StandbyChannel:
        return StandbyChannel(self.session, self)

    @property
    def reported(self) -> bool:
        return self.stands_by

    @property
    def free(self) -> bool:
        """Whether the daemon is idle."""
        return self.stands_by and self.channel.living and self.channel.client is None and not self.leaving

    def keep_waiting(self) -> None:
        """Send an idle daemon a sign of life."""
        if self.free:
            self.channel.write(KEEP)

    def hand(self, data: bytes) -> None:
        """Relay a client's bytes to the daemon; no bytes mean that the client has released it."""
        if data:
            self.channel.write(data)
        elif self.channel.client is not None:
            client, self.channel.client, self.leaving = self.channel.client, None, True
            self.channel.read(True)
            self._overdue = asyncio.get_running_loop().call_later(ENDING, self.give_up, "its daemon did not end")
            client.send_end(ChannelEnd(0))
            self.released()
            self.stand_by()  # the daemon may have reported before this frame arrived

    def stand_by(self) -> None:
        """Mark the daemon as idle if its last bytes are the marker."""
        if not self.channel.banner.endswith(MARKER):
            return
        if self._overdue is not None:
            self._overdue.cancel()
        self.stands_by, self.leaving = True, False
        settle(self.first_news, None)
        self.released()
