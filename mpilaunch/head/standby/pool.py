"""The keeper's pool: standby daemons and the clients that use them; bytes are relayed between a daemon and its client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from mpilaunch.agent import Agent, Channel, ChannelEnd
from mpilaunch.head.nodes.daemons import ENDING, Daemons
from mpilaunch.head.nodes.link import LAST_OUTPUT, LinkEvents, NodeLink
from mpilaunch.head.standby.client import DOWN, NO, NONCE, PROOF, TAKE, YES
from mpilaunch.head.tasks import settle
from mpilaunch.hosts.allocation import Node
from mpilaunch.job.spec import JobSpec
from mpilaunch.relay import MOST_DATA, STDERR, STDIN, STDOUT, Frames
from mpilaunch.wire.challenge import ANSWER_SIZE, Listener
from mpilaunch.wire.frames import KEEP, MARKER, STANDBY

PROOF_SECONDS = 5.0
"""Seconds in which a client must prove that it knows the keeper's secret."""
KEEP_PAUSE = 30.0
"""Seconds between two signs of life for standby daemons, which wait four times as long for one."""


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
    """The link to one daemon of the pool.

    Attributes:
        client: the client that uses the daemon.
        stands_by: the daemon has started; it is idle or in use.
        leaving: its client has finished with it, and it has not reported that it is idle again.
    """

    client: StandbyClient | None = None
    stands_by = leaving = False
    _overdue: asyncio.TimerHandle | None = None

    def __init__(self, node: Node, keeper: PoolEvents) -> None:
        super().__init__(node, keeper)
        self._keeper = keeper

    @property
    def reported(self) -> bool:
        """Whether the daemon has started."""
        return self.stands_by

    @property
    def free(self) -> bool:
        """Whether the daemon is idle."""
        return self.stands_by and self.living and self.client is None and not self.leaving

    def data_received(self, data: bytes) -> None:
        """Relay the daemon's bytes to its client, or look for the sign that it is idle."""
        if self.client is not None:
            self.banner = (self.banner + data[-len(MARKER) :])[-len(MARKER) :]
            self.client.tell(STDOUT, data)
        else:
            self.banner = (self.banner + data)[-LAST_OUTPUT:]
            self._stand_by()

    def stderr_received(self, data: bytes) -> None:
        """Relay the daemon's stderr to its client, or keep the last of it."""
        if self.client is not None:
            self.client.tell(STDERR, data)
        else:
            super().stderr_received(data)

    def closed(self, end: ChannelEnd) -> None:
        """Report the end of the channel to the client and the keeper."""
        if self.client is not None:
            self.client.end(end)
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
            self._overdue = asyncio.get_running_loop().call_later(ENDING, self.give_up, "its daemon did not end")
            client.end(ChannelEnd(0))
            self._stand_by()  # the daemon may have reported before this frame arrived

    def _stand_by(self) -> None:
        """Mark the daemon as idle if its last bytes are the marker."""
        if not self.banner.endswith(MARKER):
            return
        if self._overdue is not None:
            self._overdue.cancel()
        self.stands_by, self.leaving = True, False
        settle(self.first_news, None)
        self._keeper.released()


class StandbyDaemons(Daemons):
    """Starts the daemons of the pool and keeps them alive."""

    def __init__(self, job: JobSpec, nodes: Sequence[Node], agents: Mapping[str, Agent], keeper: PoolEvents) -> None:
        self._keeper = keeper
        super().__init__(job, nodes, agents, keeper, standby=False)

    def make_link(self, node: Node) -> NodeLink:
        """Return a new link for a node."""
        return StandbyLink(node, self._keeper)

    def greet(self, link: NodeLink) -> None:
        """Send nothing: the client sends the first message."""

    async def beat(self) -> None:
        """Send signs of life to idle daemons; does not return."""
        while True:
            await asyncio.sleep(KEEP_PAUSE)
            for link in list(self.links.values()):
                assert isinstance(link, StandbyLink)
                link.keep_waiting()

    async def open(self, link: NodeLink) -> tuple[Channel, bytes]:
        """Start the standby daemon of a node; raises AgentFailure."""
        command, payload = self.boot()
        return await self._agents[link.node.agent].open(link.node, [*command, STANDBY], link), payload


class StandbyClient(Frames):
    """The keeper's side of a client's connection."""

    def __init__(self, keeper: PoolEvents) -> None:
        super().__init__()
        self._keeper = keeper
        self._link: StandbyLink | None = None
        self._asking: asyncio.Task[None] | None = None
        self._listener: Listener | None = Listener(keeper.secret)
        self._deadline: asyncio.TimerHandle | None = None
        self.most = ANSWER_SIZE

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask the client to prove that it knows the secret."""
        super().connection_made(transport)
        _, user, _ = self.peer
        if self._listener is None or user != os.geteuid():
            self.transport.abort()
            return
        self._deadline = asyncio.get_running_loop().call_later(PROOF_SECONDS, self.transport.abort)
        self._keeper.connected(self)
        self.tell(NONCE, self._listener.nonce)

    def _check_proof(self, listener: Listener, kind: int, data: bytes) -> None:
        proof = listener.check(data) if kind == PROOF else b""
        if not proof:
            self._refuse()
            return
        self._listener = None
        self.most = MOST_DATA
        self._decided()
        self.tell(PROOF, proof)

    def _decided(self) -> None:
        self._keeper.decided(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def frame(self, kind: int, data: bytes) -> None:
        """Handle the proof, then the request; after that, all frames are for the daemon."""
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
        elif self.transport.is_closing():  # `wait_for` may have swallowed the cancellation: see `cancel_all`
            self._link.give_up("the launch has gone")
        else:
            self.tell(YES)

    def end(self, end: ChannelEnd) -> None:
        """Report to the client that its daemon has ended or was released."""
        self.tell_end(end)
        self._keeper.released()

    def _refuse(self) -> None:
        self.tell(NO)
        self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """End the daemon of a client that has gone."""
        self._decided()
        if self._asking is not None:
            self._asking.cancel()
        if self._link is not None and self._link.client is self and self._link.living:
            self._link.give_up("the launch has gone")
