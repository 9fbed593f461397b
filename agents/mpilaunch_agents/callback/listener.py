"""The door at which nodes call back: it accepts connections, and bounds those that have not proved who they are.

Anybody may connect, many times. An unproved connection costs a descriptor, and the buffers of TLS only once it has sent
something; it has a deadline, and where there are too many, the peer with the most of them loses one. Nothing that a
stranger sends is ever reported.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, cast

AUTHENTICATION_SECONDS = 10.0
"""How long a connection may take to prove who it is, from its start."""
MAX_UNAUTHENTICATED = 64
"""Unproved connections that there may be, besides one for each node that is expected."""
BURST = 8
"""Connections that are accepted before other events have their turn."""
NO_DESCRIPTORS_PAUSE = 0.05
"""Seconds until the next attempt to accept where this process has no descriptor left."""


class Caller(Protocol):
    """What the door needs of a connection's protocol.

    Attributes:
        settled: done once the connection is proved or lost; its result says whether it is proved.
    """

    settled: asyncio.Future[bool]

    def abort(self) -> None:
        """Cut the connection."""


class _Visit:
    """A connection that is not proved yet."""

    def __init__(self, connection: socket.socket, address: str) -> None:
        self.connection, self.address = connection, address
        self.spoken = False
        self.task: asyncio.Task[None] | None = None


class CallbackListener:
    """Accepts connections until it is closed.

    Args:
        listener: the socket; the door's from here on.
        context: of TLS.
        caller: makes the protocol of a connection.
        expected: returns how many nodes are expected to call.
    """

    def __init__(
        self, listener: socket.socket, context: ssl.SSLContext, caller: Callable[[], Caller], expected: Callable[[], int]
    ) -> None:
        self._listener, self._context, self._caller, self._expected = listener, context, caller, expected
        self._visits: list[_Visit] = []
        listener.setblocking(False)
        self.port: int = listener.getsockname()[1]
        self._accepting = asyncio.ensure_future(self._accept())

    async def close(self) -> None:
        """Accept nothing any more, and cut what is not proved."""
        tasks = [self._accepting, *(visit.task for visit in self._visits if visit.task is not None)]
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
            except OSError:
                # Out of descriptors or memory, or the peer has gone already.
                self._drop_one()
                await asyncio.sleep(NO_DESCRIPTORS_PAUSE)
                continue
            if len(self._visits) >= MAX_UNAUTHENTICATED + self._expected():
                self._drop_one()
            visit = _Visit(connection, peer[0])
            self._visits.append(visit)
            visit.task = asyncio.ensure_future(self._admit(visit))
            visit.task.add_done_callback(partial(self._forget, visit))
            accepted += 1
            if accepted % BURST == 0:
                await asyncio.sleep(0)

    def _drop_one(self) -> None:
        """Drop the oldest silent connection of the peer with the most, or its oldest where all have sent something."""
        if not self._visits:
            return
        (address, _), *_ = Counter(visit.address for visit in self._visits).most_common(1)
        visits = [visit for visit in self._visits if visit.address == address]
        dropped = next((visit for visit in visits if not visit.spoken), visits[0])
        self._visits.remove(dropped)
        if dropped.task is not None:
            dropped.task.cancel()

    def _forget(self, visit: _Visit, task: asyncio.Task[None]) -> None:
        if visit in self._visits:
            self._visits.remove(visit)
        # From the first byte on, TLS closes it.
        if not visit.spoken:
            visit.connection.close()

    async def _admit(self, visit: _Visit) -> None:
        """Wait until a connection is proved, and cut it otherwise."""
        with suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._prove(visit), AUTHENTICATION_SECONDS)

    async def _prove(self, visit: _Visit) -> None:
        loop = asyncio.get_running_loop()
        await _readable(visit.connection)
        visit.spoken = True
        factory = cast(Callable[[], asyncio.BaseProtocol], self._caller)
        _, protocol = await loop.connect_accepted_socket(
            factory, visit.connection, ssl=self._context, ssl_handshake_timeout=AUTHENTICATION_SECONDS
        )
        caller = cast(Caller, protocol)
        proved = False
        try:
            proved = await asyncio.shield(caller.settled)
        finally:
            if not proved:
                caller.abort()


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(connection, ready.set_result, None)
    try:
        await ready
    finally:
        loop.remove_reader(connection)
