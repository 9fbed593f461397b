"""Around any other agent: what that starts on a node calls the head back, over TLS, and the daemon's stdin and stdout go there.

For agents that hand on no stdin (`kubectl exec` without `-i`), and for more pods than kubectl processes should stay open. The
node knows the head by the fingerprint of a certificate made for this launch, the head knows the node by a secret that is good
for one connection. An agent without stdin can hand it on in the command line only, where other users of both machines may see
it until the node has called; one that says it first is in the place of the node.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import socket
import ssl
import tempfile
import zlib
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from mpilaunch.agent import CHECK_PYTHON, Agent, AgentFailure, Channel, ChannelEnd, ChannelEvents
from mpilaunch.hosts.allocation import Node
from mpilaunch.relay import HEADER, STDIN, RelayedChannel
from mpilaunch_agents.callback.listener import CallbackListener
from mpilaunch_agents.callback.node import CANNOT_CALL, SECRET

MOST_ADDRESSES = 8
"""Addresses of the head that a node tries."""
GREETING = HEADER.pack(SECRET, 64)
"""How a connection begins."""


class CallbackAgent:
    """Reaches nodes by another agent, and talks with what that has started over a connection of its own.

    Args:
        stdin: the other agent hands on stdin, by which a secret is better sent than in a command line.
        inner: the other agent. One that is `outlived` by what it has started is cut off once the node has called.
    """

    def __init__(self, inner: Agent, *, stdin: bool) -> None:
        self._inner, self._stdin = inner, stdin
        self._outlived = getattr(inner, "outlived", False)
        self._expected: dict[str, _Called] = {}
        self._callers: set[_Caller] = set()
        self._listening: asyncio.Task[tuple[CallbackListener, str, str]] | None = None

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> Channel:
        """Start the command, of which the first word is a Python; raises AgentFailure."""
        if self._listening is None:
            self._listening = asyncio.ensure_future(self._listen())
        try:
            _, places, pin = await asyncio.shield(self._listening)
        except OSError as error:
            raise AgentFailure("agent-failed", f"no port to be called back at: {error}") from error
        secret = secrets.token_hex(32)
        called = _Called(events, self._outlived, lambda: self._expected.pop(secret, None))
        self._expected[secret] = called
        python, *arguments = command
        shown = "-" if self._stdin else secret
        try:
            inner = await self._inner.open(
                node, [python, "-I", "-S", "-B", "-c", call_back(), places, pin, shown, *arguments], called
            )
        except BaseException:
            self._expected.pop(secret, None)
            raise
        if self._stdin:
            inner.write(f"{secret}\n".encode())
        called.opened(inner)
        return called

    async def close(self) -> None:
        """Cut every connection, and let the other agent give back all that it has."""
        if self._listening is not None:
            if not self._listening.done():
                self._listening.cancel()
            with suppress(OSError, asyncio.CancelledError):
                await (await self._listening)[0].close()
        self._expected.clear()
        await self._inner.close()
        while self._callers:
            for caller in list(self._callers):
                caller.abort()
            await asyncio.sleep(0)

    async def _listen(self) -> tuple[CallbackListener, str, str]:
        """Return the door, where it can be reached, and the fingerprint of its certificate; raises OSError."""
        context, pin = _certificate()
        if socket.has_dualstack_ipv6():
            listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        else:
            listener = socket.create_server(("", 0), backlog=1024)
        door = CallbackListener(listener, context, lambda: _Caller(self._expected, self._callers), lambda: len(self._expected))
        port = door.port
        places = [f"[{address}]:{port}" if ":" in address else f"{address}:{port}" for address in addresses()]
        return door, ",".join(places), pin


class _Caller(RelayedChannel):
    """A connection from a node.

    Args:
        expected: who is to call, by secret; one that has called is taken out.
        callers: all connections that there are.
    """

    def __init__(self, expected: dict[str, _Called], callers: set[_Caller]) -> None:
        super().__init__(None, "its connection back to the head was lost")
        self.called: _Called | None = None
        self.settled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._expected, self._callers = expected, callers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; TLS speaks by one of its own kind."""
        self.transport = transport  # type: ignore[assignment]
        self._callers.add(self)

    def data_received(self, data: bytes) -> None:
        """Take a secret, and nothing else before it; what a daemon says may come right behind it."""
        if self.events is None and not GREETING.startswith(bytes(self._buffer + data)[: len(GREETING)]):
            self.abort()
        else:
            super().data_received(data)

    def frame_received(self, kind: int, data: bytes) -> None:
        """Take the secret, and hand on what the daemon says."""
        if self.events is not None:
            super().frame_received(kind, data)
        elif kind == SECRET:
            self.called = self._expected.pop(data.decode("ascii", "replace"), None)
            if self.called is None:
                self.abort()
            else:
                self._settle(proved=True)
                self.called.connected(self)
        else:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the end."""
        self._settle(proved=False)
        self._callers.discard(self)
        if self.called is not None:
            self.called.ended(self._end)

    def _settle(self, *, proved: bool) -> None:
        if not self.settled.done():
            self.settled.set_result(proved)


class _Called:
    """The channel of a node that is to call. It is the `ChannelEvents` of what the inner agent has started."""

    def __init__(self, events: ChannelEvents, outlived: bool, forget: Callable[[], object]) -> None:
        self._events, self._outlived, self._forget = events, outlived, forget
        self._inner: Channel | None = None
        self._caller: _Caller | None = None
        self._unsent: list[bytes] = []
        self._ended = False

    def opened(self, inner: Channel) -> None:
        """The inner agent has started its command."""
        self._inner = inner
        self._let_go()

    def connected(self, caller: _Caller) -> None:
        """The node has called."""
        self._caller = caller
        caller.events = self._events
        for data in self._unsent:
            caller.send_frame(STDIN, data)
        self._unsent.clear()
        self._let_go()

    def ended(self, end: ChannelEnd) -> None:
        """The daemon has ended, or its connection."""
        if not self._ended:
            self._ended = True
            if self._inner is not None:
                self._inner.abort()
            self._events.closed(end)

    def _let_go(self) -> None:
        if self._inner is not None and self._caller is not None and self._outlived:
            self._inner.abort()

    # The channel

    def write(self, data: bytes) -> None:
        """Send bytes to the daemon's stdin."""
        if data:
            self._send(data)

    def write_eof(self) -> None:
        """Close the daemon's stdin."""
        self._send(b"")

    def _send(self, data: bytes) -> None:
        if self._caller is None:
            self._unsent.append(data)
        else:
            self._caller.send_frame(STDIN, data)

    def abort(self) -> None:
        """Cut both off."""
        if self._caller is not None:
            self._caller.abort()
        if self._inner is not None:
            self._inner.abort()

    # What the inner agent tells

    def data_received(self, data: bytes) -> None:
        """A banner perhaps, or why the node cannot call."""
        self.stderr_received(data)

    def stderr_received(self, data: bytes) -> None:
        """Keep it for the explanation."""
        if not self._ended:
            self._events.stderr_received(data)

    def pause_writing(self) -> None:
        """Nothing is written there."""

    def resume_writing(self) -> None:
        """As in `pause_writing`."""

    def closed(self, end: ChannelEnd) -> None:
        """It has ended: of no interest once the node has called."""
        if self._caller is None:
            self._forget()
            self.ended(ChannelEnd(end.exit_code, end.error, "head-unreachable") if end.exit_code == CANNOT_CALL else end)


@lru_cache(None)
def call_back() -> str:
    """Return what a node is to run; short, for kubectl puts it into a URL."""
    text = (Path(__file__).with_name("node.py")).read_bytes()
    packed = b64encode(zlib.compress(text, 9)).decode()
    return f"import base64,sys,zlib\n{CHECK_PYTHON}exec(zlib.decompress(base64.b64decode('{packed}')))"


def addresses() -> list[str]:
    """Return the addresses of this machine that another may reach, its own loopback last, for nodes that are this machine."""
    import psutil

    found = []
    for interface in psutil.net_if_addrs().values():
        for entry in interface:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                address = ipaddress.ip_address(entry.address.partition("%")[0])
                if not (address.is_loopback or address.is_link_local):
                    found.append(str(address))
    return [*sorted(found, key=lambda address: ":" in address)[:MOST_ADDRESSES], "127.0.0.1"]


def _certificate() -> tuple[ssl.SSLContext, str]:
    """Return a context with a certificate of our own, and the fingerprint by which a node knows it."""
    # asyncssh needs it too, and takes long to load it.
    import datetime
    import hashlib

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mpilaunch")])
    day = datetime.timedelta(days=1)
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - day).not_valid_after(now + 3650 * day)
    made = builder.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    words = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()) + made.public_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    descriptor, path = tempfile.mkstemp()  # of mode 0600; the ssl module reads keys from files only
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(words)
        context.load_cert_chain(path)
    finally:
        os.unlink(path)
    return context, hashlib.sha256(made.public_bytes(serialization.Encoding.DER)).hexdigest()
