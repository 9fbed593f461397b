"""The rendezvous store of Horovod on Gloo, served on rank 0's node: the values of keys, over HTTP.

The protocol is that of horovod/common/gloo/http_store.cc: GET, PUT and DELETE of /SCOPE/KEY, one request on a connection, 404
for a key that is absent. That client knows no authentication, but it puts any text of HOROVOD_GLOO_RENDEZVOUS_ADDR in front of
the path: ranks are given HOST:PORT/SECRET, and a request whose path does not begin with the secret is answered 403.

This module must never read the body of a request without the secret, never wait without a deadline, and never hold more than
its limits.
"""

from __future__ import annotations

import errno
import socket

from mpilaunch.daemon.callers import Callers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mpilaunch.daemon.poller import Poller

MOST_REQUESTS = 256
"""Requests at a time; one more, and the oldest is closed. Horovod tries three times."""
REQUEST_SECONDS = 3.0
"""Deadline of a request with its answer, as in Horovod's own server."""
LONGEST_HEAD = 4096
LARGEST_VALUE = 1 << 20
"""Gloo publishes 136 bytes for each other rank: enough for 7,000 ranks."""
MOST_BYTES, MOST_KEYS = 256 << 20, 100_000
"""Limits of all keys and values together."""
READ_SIZE = 64 << 10
BACKLOG = 4096
ANSWERS = {
    200: b"OK",
    400: b"Bad Request",
    403: b"Forbidden",
    404: b"Not Found",
    413: b"Content Too Large",
    501: b"Not Implemented",
    507: b"Insufficient Storage",
}


def read_head(head: bytes) -> tuple[bytes, bytes, int]:
    """Return the method, the path and the length of the body that the head of a request names; raises ValueError."""
    first, *fields = head.split(b"\r\n")
    method, path, _ = first.split(b" ")
    lengths = [value for name, _, value in (field.partition(b":") for field in fields) if name.lower() == b"content-length"]
    length = int(lengths[0]) if lengths else 0
    if length < 0 or len(lengths) > 1:
        raise ValueError("Content-Length")
    return method, path, length


def listen(address: str, port: int) -> socket.socket:
    """Return a socket that listens on an address of this node, or on all of them where it has no such address.

    Raises OSError: also for an IPv6 address, which Horovod's client cannot reach.
    """
    if ":" in address:
        raise OSError(errno.EAFNOSUPPORT, "Horovod reaches it over IPv4 only, and MASTER_ADDR is %s" % address)
    try:
        socket.inet_pton(socket.AF_INET, address)  # a name could take long to resolve, and may be that of a gateway
        return socket.create_server((address, port), backlog=BACKLOG)
    except OSError as error:
        if error.errno not in (None, errno.EADDRNOTAVAIL):
            raise
        return socket.create_server(("", port), backlog=BACKLOG)


class Rendezvous:
    """A store; its ranks reach it at `address`, a name or an IPv4 address of this node. Raises OSError if it cannot listen."""

    def __init__(
        self,
        address: str,
        port: int,
        secret: str,
        poller: Poller,
        set_timer: Callable[[str, float, Callable[[], None]], None],
    ) -> None:
        self._poller = poller
        # A look-up by hash takes the same time however similar a wrong secret is.
        self._prefixes = {b"/%s:%d/" % (secret.encode("ascii"), port)}
        (self._prefix_length,) = map(len, self._prefixes)
        self._values: dict[bytes, bytes] = {}
        self._bytes = 0
        self._callers = Callers(
            listen(address, port),
            poller,
            set_timer,
            "rendezvous",
            MOST_REQUESTS,
            REQUEST_SECONDS,
            READ_SIZE,
            lambda connection: True,
            self._received,
        )
        self.close = self._callers.close

    def _received(self, connection: socket.socket, data: bytes) -> None:
        end = data.find(b"\r\n\r\n", 0, LONGEST_HEAD)
        if end >= 0:
            self._take(connection, data[:end], data[end + 4 :])
        elif len(data) >= LONGEST_HEAD:
            self._answer(connection, 400)

    def _take(self, connection: socket.socket, head: bytes, body: bytes) -> None:
        try:
            method, path, length = read_head(head)
        except ValueError:
            self._answer(connection, 400)
            return
        prefix, key = path[: self._prefix_length], path[self._prefix_length :]
        if prefix not in self._prefixes:
            self._answer(connection, 403)
        elif length > LARGEST_VALUE:
            self._answer(connection, 413)
        elif len(body) >= length:
            self._answer(connection, *self._handle(method, key, body[:length]))

    def _handle(self, method: bytes, key: bytes, value: bytes) -> tuple[int, bytes]:
        """Carry out a request; return the status and the body of its answer."""
        known = self._values.get(key)
        if method == b"GET":
            return (404, b"") if known is None else (200, known)
        if method not in (b"PUT", b"DELETE"):
            return 501, b""
        if known is not None:
            self._bytes -= len(key) + len(self._values.pop(key))
        if method == b"PUT":
            size = len(key) + len(value)
            if self._bytes + size > MOST_BYTES or len(self._values) >= MOST_KEYS:
                return 507, b""
            self._values[key] = value
            self._bytes += size
        return 200, b""

    def _answer(self, connection: socket.socket, status: int, body: bytes = b"") -> None:
        head = b"HTTP/1.1 %d %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, ANSWERS[status], len(body))
        self._send(connection, head + body)

    def _send(self, connection: socket.socket, data: bytes) -> None:
        try:
            sent = connection.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(data)  # its caller has gone
        if sent == len(data):
            self._callers.drop(connection)
        else:
            self._poller.watch(connection, lambda: self._send(connection, data[sent:]), reading=False, writing=True)
