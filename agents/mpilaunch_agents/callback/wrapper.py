"""Wraps another agent: its command connects back to the head over TLS, and the daemon's stdin and stdout use that connection.

It serves agents that do not forward stdin (`kubectl exec` without `-i`), and jobs on more pods than kubectl processes should
stay open. The node authenticates the head by the fingerprint of a certificate made for this launch; the head authenticates the
node by a secret for one connection. An agent without stdin passes the secret on the command line, where other users of both
machines can read it until the node has connected: whoever sends it first takes the node's place.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import secrets
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from mpilaunch.agent import (
    CHECK_PYTHON,
    Agent,
    AgentFailure,
    Channel,
    ChannelEnd,
    ChannelEvents,
    CommandLineAgent,
    Node,
    python_command,
)
from mpilaunch.relay import HEADER, STDIN, RelayedChannel
from mpilaunch_agents.callback.listener import CallbackListener
from mpilaunch_agents.callback.node import CANNOT_CONNECT, SECRET

MAX_ADDRESSES = 8
"""Maximum number of the head's addresses that a node tries."""
REASON_SECONDS = 2.0
"""Seconds for the other agent's command to end, and to say why, after its node's connection was lost."""
MAX_FROM_NODE = 1 << 20
"""Maximum bytes of data in a frame from a node, which sends what one read of a pipe gives."""
GREETING = HEADER.pack(SECRET, 64)
"""The first bytes of a connection from a node."""


class CallbackAgent:
    """Starts commands by another agent and communicates with them over connections from the nodes.

    Args:
        inner: the other agent. If its commands outlive its channels (`outlived`), the channel is closed once the node connects.
            If its nodes may reach some ports only, it has a coroutine `ports` that returns them.
        stdin: the other agent forwards stdin, so the secret is sent there and not on the command line.
    """

    def __init__(self, inner: Agent, *, stdin: bool) -> None:
        self._inner, self._stdin = inner, stdin
        self._outlived = getattr(inner, "outlived", False)
        self._expected: dict[str, _CallbackChannel] = {}
        self._connections: set[_NodeConnection] = set()
        self._listening: asyncio.Task[tuple[CallbackListener, str, str]] | None = None

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the command line of the other agent, for a user who looks for the reason of a failure."""
        return self._inner.argv(node, command) if isinstance(self._inner, CommandLineAgent) else []

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> Channel:
        """Start the command, whose first word is a Python interpreter; raises AgentFailure."""
        if self._listening is None:
            self._listening = asyncio.ensure_future(self._listen())
        try:
            _, endpoints, fingerprint = await asyncio.shield(self._listening)
        except OSError as error:
            raise AgentFailure("agent-failed", f"no port to be called back at: {error}") from error
        secret = secrets.token_hex(32)
        channel = _CallbackChannel(events, self._outlived, lambda: self._expected.pop(secret, None))
        self._expected[secret] = channel
        on_node = (endpoints, fingerprint, "-" if self._stdin else secret, *command[1:])
        try:
            inner = await self._inner.open(
                node, python_command(command[0], "mpilaunch callback", node_script(), *on_node), channel
            )
        except BaseException:
            self._expected.pop(secret, None)
            raise
        if self._stdin:
            inner.write(f"{secret}\n".encode())
        channel.opened(inner)
        return channel

    async def close(self) -> None:
        if self._listening is not None:
            if not self._listening.done():
                self._listening.cancel()
            with suppress(OSError, AgentFailure, asyncio.CancelledError):
                await (await self._listening)[0].close()
        self._expected.clear()
        await self._inner.close()
        while self._connections:
            for connection in list(self._connections):
                connection.abort()
            await asyncio.sleep(0)

    async def _listen(self) -> tuple[CallbackListener, str, str]:
        """Return the listener, its endpoints, and the fingerprint of its certificate; raises OSError."""
        context, fingerprint = _certificate()
        ask = getattr(self._inner, "ports", None)
        server = _server(await ask() if ask else range(0))
        listener = CallbackListener(
            server, context, lambda: _NodeConnection(self._expected, self._connections), lambda: len(self._expected)
        )
        hosts = (f"[{address}]" if ":" in address else address for address in addresses())
        return listener, ",".join(f"{host}:{listener.port}" for host in hosts), fingerprint


class _NodeConnection(RelayedChannel):
    """A connection from a node; `expected` has the channels of the nodes that have not connected yet, by secret."""

    max_data = MAX_FROM_NODE

    def __init__(self, expected: dict[str, _CallbackChannel], connections: set[_NodeConnection]) -> None:
        super().__init__(None, "its connection back to the head was lost")
        self.channel: _CallbackChannel | None = None
        self.authenticated: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._expected, self._connections = expected, connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # TLS has a transport class of its own
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Accept only a secret first; the daemon's frames may follow in the same data."""
        if self.events is None and not GREETING.startswith(bytes(self._buffer + data)[: len(GREETING)]):
            self.abort()
        else:
            super().data_received(data)

    def frame_received(self, kind: int, data: bytes) -> None:
        """Check the secret; pass on the daemon's frames."""
        if self.events is not None:
            super().frame_received(kind, data)
            return
        channel = self._expected.pop(data.decode("ascii", "replace"), None) if kind == SECRET else None
        if channel is None:
            self.abort()
            return
        self.channel = channel
        self._set_authenticated(True)
        channel.connected(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._set_authenticated(False)
        self._connections.discard(self)
        if self.channel is not None:
            self.channel.ended(self._end)

    def _set_authenticated(self, result: bool) -> None:
        if not self.authenticated.done():
            self.authenticated.set_result(result)


class _CallbackChannel:
    """The channel to a node that connects back; also the ChannelEvents of the command that the inner agent started."""

    def __init__(self, events: ChannelEvents, outlived: bool, forget: Callable[[], object]) -> None:
        self._events, self._outlived, self._forget = events, outlived, forget
        self._inner: Channel | None = None
        self._connection: _NodeConnection | None = None
        self._unsent: list[bytes] = []
        self._lost: ChannelEnd | None = None
        self._inner_end: ChannelEnd | None = None
        self._ended = False

    def opened(self, inner: Channel) -> None:
        """Called when the inner agent has started its command."""
        self._inner = inner
        self._release_inner()

    def connected(self, connection: _NodeConnection) -> None:
        """Called when the node has connected."""
        self._connection = connection
        connection.events = self._events
        for data in self._unsent:
            connection.send_frame(STDIN, data)
        self._unsent.clear()
        self._release_inner()

    def ended(self, end: ChannelEnd) -> None:
        """Called when the daemon or its connection has ended; where that was lost, the other agent may know why."""
        if self._lost is not None or self._ended:
            return
        if end.exit_code is not None or self._inner is None or self._outlived:
            self._close(end)
            return
        self._lost = end
        self._explain_loss()
        if not self._ended:
            asyncio.get_running_loop().call_later(REASON_SECONDS, self._close, end)

    def _explain_loss(self) -> None:
        """End the channel once its connection was lost and the other agent's command has ended, whichever comes first."""
        if self._lost is not None and self._inner_end is not None:
            self._close(self._lost._replace(error=self._inner_end.error or self._lost.error, cause=self._inner_end.cause))

    def _close(self, end: ChannelEnd) -> None:
        if not self._ended:
            self._ended = True
            if self._inner is not None:
                self._inner.abort()
            self._events.closed(end)

    def _release_inner(self) -> None:
        if self._inner is not None and self._connection is not None and self._outlived:
            self._inner.abort()

    # Methods of a channel

    def write(self, data: bytes) -> None:
        if data:
            self._send(data)

    def write_eof(self) -> None:
        self._send(b"")

    def _send(self, data: bytes) -> None:
        if self._connection is None:
            self._unsent.append(data)
        else:
            self._connection.send_frame(STDIN, data)

    def pause_reading(self) -> None:
        if self._connection is not None and not self._ended:
            with suppress(AttributeError):  # Python 3.10's transport of a TLS connection that is lost
                self._connection.pause_reading()

    def resume_reading(self) -> None:
        if self._connection is not None and not self._ended:
            with suppress(AttributeError):
                self._connection.resume_reading()

    def abort(self) -> None:
        for channel in (self._connection, self._inner):
            if channel is not None:
                channel.abort()

    # Events of the inner channel

    def data_received(self, data: bytes) -> None:
        """Pass stdout on as stderr: it may be a banner, or the reason why the node cannot connect."""
        self.stderr_received(data)

    def stderr_received(self, data: bytes) -> None:
        if not self._ended:
            self._events.stderr_received(data)

    def pause_writing(self) -> None:
        """Ignored: only the secret is written to the inner channel."""

    def resume_writing(self) -> None:
        """Ignored, as `pause_writing`."""

    def closed(self, end: ChannelEnd) -> None:
        """End the channel unless the node is connected."""
        if self._connection is None:
            self._forget()
            self._close(end._replace(cause="head-unreachable") if end.exit_code == CANNOT_CONNECT else end)
        else:
            self._inner_end = end
            self._explain_loss()


@lru_cache(None)
def node_script() -> str:
    return f"import sys\n{CHECK_PYTHON}exec({Path(__file__).with_name('node.py').read_text(encoding='utf-8')!r})"


def _server(ports: range) -> socket.socket:
    """Return a socket that listens on a free one of these ports, on any if there are none; raises OSError."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    for port in secrets.SystemRandom().sample(ports, len(ports)) or [0]:
        try:
            return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=1024)
        except OSError as error:
            if not ports or error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"the ports {ports.start}-{ports.stop - 1} are all in use")


def addresses() -> list[str]:
    """Return this machine's addresses that other machines may reach, and loopback last, for nodes on this machine."""
    import psutil

    entries = [entry for interface in psutil.net_if_addrs().values() for entry in interface]
    internet = [entry.address.partition("%")[0] for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]
    usable = [one for one in map(ipaddress.ip_address, internet) if not (one.is_loopback or one.is_link_local)]
    return [*map(str, sorted(usable, key=lambda address: address.version)[:MAX_ADDRESSES]), "127.0.0.1"]


def _certificate() -> tuple[ssl.SSLContext, str]:
    """Return a TLS context with a new self-signed certificate, and the certificate's fingerprint."""
    # cryptography is slow to import, and only this function needs it.
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
    certificate = builder.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    private_key = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # The ssl module reads keys only from files; this one is in memory, so that a killed head leaves no key behind.
    with open(os.memfd_create("key"), "wb") as file:
        file.write(private_key + certificate.public_bytes(pem))
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context, hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()
