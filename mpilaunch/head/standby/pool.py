"""The keeper's links to standby daemons: they relay bytes between a daemon and the client that uses it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from mpilaunch.agent import ChannelEnd
from mpilaunch.head.nodes.daemons import ENDING
from mpilaunch.head.nodes.link import LAST_OUTPUT, LinkEvents, NodeLink
from mpilaunch.head.tasks import settle
from mpilaunch.hosts.allocation import Node
from mpilaunch.relay import STDERR, STDOUT, FrameProtocol
from mpilaunch.wire.frames import KEEP, MARKER


class StandbyEvents(LinkEvents, Protocol):
    """Events of a standby link, implemented by the keeper."""

    def released(self) -> None:
        """Note that a daemon may be idle again."""


class StandbyLink(NodeLink):
    """The link to one daemon of the pool.

    Attributes:
        client: the connection of the launch that uses the daemon.
        stands_by: the daemon has started; it is idle or in use.
        leaving: its client has finished with it, and it has not reported that it is idle again.
    """

    client: FrameProtocol | None = None
    stands_by = leaving = False
    _overdue: asyncio.TimerHandle | None = None

    def __init__(self, node: Node, events: StandbyEvents) -> None:
        super().__init__(node, events)
        self._released = events.released

    @property
    def reported(self) -> bool:
        return self.stands_by

    @property
    def free(self) -> bool:
        """Whether the daemon is idle."""
        return self.stands_by and self.living and self.client is None and not self.leaving

    def data_received(self, data: bytes) -> None:
        """Relay the daemon's bytes to its client, or look for the sign that it is idle."""
        if self.client is not None:
            self.banner = (self.banner + data[-len(MARKER) :])[-len(MARKER) :]
            self.client.send_frame(STDOUT, data)
        else:
            self.banner = (self.banner + data)[-LAST_OUTPUT:]
            self._stand_by()

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
            self._released()
        super().closed(end)

    def keep_waiting(self) -> None:
        """Send an idle daemon a sign of life."""
        if self.free and self._channel is not None:
            self._channel.write(KEEP)

    def hand(self, data: bytes) -> None:
        """Relay a client's bytes to the daemon; no bytes mean that the client has released it."""
        if data and self._channel is not None and self.end is None:
            self._channel.write(data)
        elif not data and self.client is not None:
            client, self.client, self.leaving = self.client, None, True
            self.resume_reading()
            self._overdue = asyncio.get_running_loop().call_later(ENDING, self.give_up, "its daemon did not end")
            client.send_end(ChannelEnd(0))
            self._released()
            self._stand_by()  # the daemon may have reported before this frame arrived

    def _stand_by(self) -> None:
        """Mark the daemon as idle if its last bytes are the marker."""
        if not self.banner.endswith(MARKER):
            return
        if self._overdue is not None:
            self._overdue.cancel()
        self.stands_by, self.leaving = True, False
        settle(self.first_news, None)
        self._released()
