"""What a keeper keeps: daemons that stand by, and the launches that have taken them, between which it hands bytes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from mpilaunch.agent import Agent, Channel, ChannelEnd
from mpilaunch.head.nodes.daemons import ENDING, Daemons
from mpilaunch.head.nodes.link import LAST_WORDS, LinkEvents, NodeLink
from mpilaunch.head.standby.client import DOWN, NO, NONCE, PROOF, TAKE, YES
from mpilaunch.head.tasks import settle
from mpilaunch.hosts.allocation import Node
from mpilaunch.job.spec import JobSpec
from mpilaunch.relay import MAX_DATA, STDERR, STDIN, STDOUT, FrameProtocol
from mpilaunch.wire.challenge import ANSWER_SIZE, Listener
from mpilaunch.wire.frames import KEEP, MARKER, STANDBY

PROOF_SECONDS = 5.0
"""Seconds in which a connection must prove that it knows the keeper's secret."""
KEEP_PAUSE = 30.0
"""Seconds between two signs of life for daemons that stand by, which wait four times as long for one."""


class PoolEvents(LinkEvents, Protocol):
    """The keeper, as its links and clients see it.

    Attributes:
        secret: the secret that a client must prove to know.
    """

    secret: bytes

    def connected(self, client: StandbyClient) -> None:
        """A client has connected and must prove itself."""

    def decided(self, client: StandbyClient) -> None:
        """A client has proved itself, was refused, or has gone."""

    def stop(self, client: StandbyClient) -> None:
        """A client asks the keeper to end; it is answered when all daemons in the pool have ended."""

    async def hand_out(self, request: bytes, client: StandbyClient) -> StandbyLink | None:
        """Return an idle daemon that fits the request, waiting a moment for one that is about to be; None without one."""

    def released(self) -> None:
        """A daemon may be idle again."""


class StandbyLink(NodeLink):
    """A daemon that stands by, and whoever has taken it.

    Attributes:
        client: the launch that it serves.
        stands_by: it is there, or serves.
        leaving: its launch wants no more of it, and it has not said yet that it stands by again.
    """

    client: StandbyClient | None = None
    stands_by = leaving = False
    _overdue: asyncio.TimerHandle | None = None

    def __init__(self, node: Node, keeper: PoolEvents) -> None:
        super().__init__(node, keeper)
        self._keeper = keeper

    @property
    def reported(self) -> bool:
        """It is there when it has said so much."""
        return self.stands_by

    @property
    def free(self) -> bool:
        """It stands by now."""
        return self.stands_by and self.living and self.client is None and not self.leaving

    def data_received(self, data: bytes) -> None:
        """Hand on what the daemon says, or wait for it to stand by."""
        if self.client is not None:
            self.banner = (self.banner + data[-len(MARKER) :])[-len(MARKER) :]
            self.client.send_frame(STDOUT, data)
        else:
            self.banner = (self.banner + data)[-LAST_WORDS:]
            self._stand_by()

    def stderr_received(self, data: bytes) -> None:
        """Keep the last words, or hand them on."""
        if self.client is not None:
            self.client.send_frame(STDERR, data)
        else:
            super().stderr_received(data)

    def closed(self, end: ChannelEnd) -> None:
        """Tell the launch, and the keeper."""
        if self.client is not None:
            self.client.end(end)
        super().closed(end)

    def keep_waiting(self) -> None:
        """Let a daemon that stands by hear that we are there."""
        if self.free and self._channel is not None:
            self._channel.write(KEEP)

    def hand(self, data: bytes) -> None:
        """Give the daemon what the launch says; nothing is the end, of which the launch has told the daemon itself."""
        if data and self._channel is not None and self.end is None:
            self._channel.write(data)
        elif not data and self.client is not None:
            client, self.client, self.leaving = self.client, None, True
            self._overdue = asyncio.get_running_loop().call_later(ENDING, self.give_up, "its daemon did not end")
            client.end(ChannelEnd(0))
            self._stand_by()  # it may have been quicker than this word

    def _stand_by(self) -> None:
        """Take note if the daemon has said that it stands by, for the first time or again."""
        if not self.banner.endswith(MARKER):
            return
        if self._overdue is not None:
            self._overdue.cancel()
        self.stands_by, self.leaving = True, False
        settle(self.first_news, None)
        self._keeper.released()


class StandbyDaemons(Daemons):
    """Daemons that stand by once they are loaded."""

    def __init__(self, job: JobSpec, nodes: Sequence[Node], agents: Mapping[str, Agent], keeper: PoolEvents) -> None:
        self._keeper = keeper
        super().__init__(job, nodes, agents, keeper, standby=False)

    def make_link(self, node: Node) -> NodeLink:
        """Return a link that hands on."""
        return StandbyLink(node, self._keeper)

    def greet(self, link: NodeLink) -> None:
        """Say nothing: whoever takes the daemon does."""

    async def beat(self) -> None:
        """Let the daemons that stand by hear that we are there; does not return."""
        while True:
            await asyncio.sleep(KEEP_PAUSE)
            for link in list(self.links.values()):
                assert isinstance(link, StandbyLink)
                link.keep_waiting()

    async def open(self, link: NodeLink) -> tuple[Channel, bytes]:
        """Start the daemon of a node, which is to stand by; raises AgentFailure."""
        command, payload = self.boot()
        return await self._agents[link.node.agent].open(link.node, [*command, STANDBY], link), payload


class StandbyClient(FrameProtocol):
    """The connection of a launch."""

    def __init__(self, keeper: PoolEvents) -> None:
        super().__init__()
        self._keeper = keeper
        self._link: StandbyLink | None = None
        self._asking: asyncio.Task[None] | None = None
        self._listener: Listener | None = Listener(keeper.secret)
        self._deadline: asyncio.TimerHandle | None = None
        self.max_data = ANSWER_SIZE

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the proof that it knows the secret."""
        super().connection_made(transport)
        _, user, _ = self.peer_credentials
        if self._listener is None or user != os.geteuid():
            self.transport.abort()
            return
        self._deadline = asyncio.get_running_loop().call_later(PROOF_SECONDS, self.transport.abort)
        self._keeper.connected(self)
        self.send_frame(NONCE, self._listener.nonce)

    def _check_proof(self, listener: Listener, kind: int, data: bytes) -> None:
        proof = listener.check(data) if kind == PROOF else b""
        if not proof:
            self._refuse()
            return
        self._listener = None
        self.max_data = MAX_DATA
        self._decided()
        self.send_frame(PROOF, proof)

    def _decided(self) -> None:
        self._keeper.decided(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def frame_received(self, kind: int, data: bytes) -> None:
        """Take the proof, and the request; after that, all is for the daemon."""
        if self._listener is not None:
            self._check_proof(self._listener, kind, data)
        elif self._link is not None and kind == STDIN:
            if self._link.client is self:
                self._link.hand(data)
        elif kind == DOWN:
            self._keeper.stop(self)
        elif kind == TAKE and self._asking is None:
            self._asking = asyncio.ensure_future(self._take(data))
        else:
            self._refuse()

    async def _take(self, request: bytes) -> None:
        self._link = await self._keeper.hand_out(request, self)
        if self._link is None:
            self._refuse()
        elif self.transport.is_closing():  # while a daemon was found: see `cancel_all`
            self._link.give_up("the launch has gone")
        else:
            self.send_frame(YES)

    def end(self, end: ChannelEnd) -> None:
        """Its daemon has gone, or stands by again."""
        self.send_end(end)
        self._keeper.released()

    def _refuse(self) -> None:
        self.send_frame(NO)
        self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """The launch has gone: its daemon goes too."""
        self._decided()
        if self._asking is not None:
            self._asking.cancel()
        if self._link is not None and self._link.client is self and self._link.living:
            self._link.give_up("the launch has gone")
