"""Listens for connections from nodes, and limits the connections that are not authenticated.

Anybody may connect, any number of times. An unauthenticated connection costs a descriptor, and TLS buffers only once it has
sent something; it has a deadline, and when there are too many, the peer with the most of them loses one. Nothing that a
stranger sends is ever reported.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, cast

from mpilaunch.asyncio_timeouts import timeout
from mpilaunch_agents.capture import readable

AUTHENTICATION_SECONDS = 10.0
"""Time that a connection has to authenticate, from its start."""
MAX_UNAUTHENTICATED = 64
"""Maximum number of unauthenticated connections, in addition to one for each expected node."""
BURST = 8
"""Connections accepted before the loop handles other events."""
NO_DESCRIPTORS_PAUSE = 0.05
"""Seconds until the next attempt to accept when this process has no descriptor left."""


class NodeConnection(Protocol):
    """The protocol of a connection; `authenticated` is done once it is authenticated (True) or lost (False)."""

    authenticated: asyncio.Future[bool]

    def abort(self) -> None:
        """Cut the connection."""


class _Pending:
    """A connection that is not authenticated yet, and the task that waits for it."""

    def __init__(self, connection: socket.socket, address: str, admit: Callable[[_Pending], Awaitable[None]]) -> None:
        self.connection, self.address = connection, address
        self.has_sent = False
        self.task = asyncio.ensure_future(admit(self))


class CallbackListener:
    """Accepts connections until it is closed; `expected` returns how many nodes have not connected yet."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        protocol: Callable[[], NodeConnection],
        expected: Callable[[], int],
    ) -> None:
        self._listener, self._context, self._protocol, self._expected = listener, context, protocol, expected
        self._pending: list[_Pending] = []
        listener.setblocking(False)
        self.port: int = listener.getsockname()[1]
        self._accepting = asyncio.ensure_future(self._accept())

    async def close(self) -> None:
        """Stop accepting, and cut unauthenticated connections."""
        tasks = [self._accepting, *(pending.task for pending in self._pending)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        accepted = 0
        while True:
            try:
                connection, peer = await loop.sock_accept(self._listener)
            except OSError:  # no descriptor or memory is left, or the peer has disconnected
                self._drop_one()
                await asyncio.sleep(NO_DESCRIPTORS_PAUSE)
                continue
            # asyncio does so for sockets that were made with their protocol only: small answers would wait for 40 ms.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self._pending) >= MAX_UNAUTHENTICATED + self._expected():
                self._drop_one()
            pending = _Pending(connection, peer[0], self._admit)
            self._pending.append(pending)
            pending.task.add_done_callback(partial(self._forget, pending))
            accepted += 1
            if accepted % BURST == 0:
                await asyncio.sleep(0)

    def _drop_one(self) -> None:
        """Cut one connection of the peer with the most: its oldest that sent nothing, or its oldest."""
        if not self._pending:
            return
        (address, _), *_ = Counter(pending.address for pending in self._pending).most_common(1)
        candidates = [pending for pending in self._pending if pending.address == address]
        dropped = next((pending for pending in candidates if not pending.has_sent), candidates[0])
        self._pending.remove(dropped)
        dropped.task.cancel()

    def _forget(self, pending: _Pending, task: asyncio.Task[None]) -> None:
        if pending in self._pending:
            self._pending.remove(pending)
        if not pending.has_sent:  # after the first byte, its TLS transport closes it
            pending.connection.close()

    async def _admit(self, pending: _Pending) -> None:
        """Wait until a connection is authenticated; cut it at its deadline."""
        with suppress(OSError, asyncio.TimeoutError):
            async with timeout(AUTHENTICATION_SECONDS):
                await self._authenticate(pending)

    async def _authenticate(self, pending: _Pending) -> None:
        await readable(pending.connection)
        pending.has_sent = True
        _, protocol = await asyncio.get_running_loop().connect_accepted_socket(
            cast(Callable[[], asyncio.BaseProtocol], self._protocol),
            pending.connection,
            ssl=self._context,
            ssl_handshake_timeout=AUTHENTICATION_SECONDS,
        )
        connection = cast(NodeConnection, protocol)
        authenticated = False
        try:
            authenticated = await asyncio.shield(connection.authenticated)
        finally:
            if not authenticated:
                connection.abort()
