"""The rendezvous store of Horovod: the protocol of horovod/common/gloo/http_store.cc, and what strangers can cost."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from collections.abc import Iterator

import pytest

from mpilaunch.daemon import rendezvous
from mpilaunch.daemon.node.probe import find_free_port
from mpilaunch.daemon.poller import Poller, Timers
from mpilaunch.daemon.rendezvous import LARGEST_VALUE, LONGEST_HEAD, MOST_REQUESTS, Rendezvous, listen

SECRET = "5ec7e7" * 11


class Store:
    """A store in a loop of its own, and a client that sends what Horovod's does."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.poller, self.timers = Poller(), Timers()
        self.port = find_free_port()
        self.rendezvous = Rendezvous(address, self.port, SECRET, self.poller, self.timers.set)
        self.connections: list[socket.socket] = []

    def turn(self, seconds: float) -> None:
        """Let the loop run for a while, at least once."""
        until = time.monotonic() + seconds
        while True:
            self.poller.run(0.01)
            self.timers.run()
            if time.monotonic() >= until:
                return

    def connect(self, data: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        self.connections.append(connection)
        connection.setblocking(False)
        while data:
            try:
                data = data[connection.send(data) :]
            except BlockingIOError:
                self.turn(0)
        connection.settimeout(5)
        return connection

    def answer(self, connection: socket.socket) -> tuple[int, bytes]:
        """Return status and body of the answer, read to the end; status 0 for a connection that is closed without one."""
        data, until = b"", time.monotonic() + 20
        while time.monotonic() < until:
            self.turn(0)
            if not select.select([connection], [], [], 0)[0]:
                continue
            try:
                more = connection.recv(1 << 16)
            except ConnectionResetError:
                more = b""
            if not more:
                break
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        if not head:
            return 0, b""
        assert b"Content-Length: %d\r\n" % len(body) in head
        return int(head.split(b" ")[1]), body

    def ask(self, method: str, path: str, body: bytes = b"", secret: str = SECRET) -> tuple[int, bytes]:
        """Send a request as HTTPRequest.hpp does, to http:// + ADDR + : + PORT + / + SCOPE + / + KEY with our ADDR."""
        url = f"127.0.0.1:{self.port}/{secret}:{self.port}/{path}"
        target = url[url.index("/") :]
        head = f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        return self.answer(self.connect(head.encode() + body))


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.rendezvous.close()
    for connection in store.connections:
        connection.close()


def test_keys_are_absent_until_they_are_put_and_after_they_are_deleted(store: Store) -> None:
    assert store.ask("GET", "global/0") == (404, b"")
    assert store.ask("PUT", "global/0", b"\0address\r\n\r\n") == (200, b"")
    assert store.ask("PUT", "global/1", b"") == (200, b"")
    assert store.ask("GET", "global/0") == (200, b"\0address\r\n\r\n")
    assert store.ask("GET", "global/1") == (200, b"")
    assert store.ask("GET", "local_node0/0") == (404, b"")
    assert store.ask("PUT", "global/0", b"newer") == (200, b"")
    assert store.ask("GET", "global/0") == (200, b"newer")
    assert store.ask("DELETE", "global/0") == (200, b"")
    assert store.ask("DELETE", "global/0") == (200, b"")
    assert store.ask("GET", "global/0") == (404, b"")


@pytest.mark.parametrize("secret", ["", "x", SECRET[:-1], SECRET + "0", SECRET.upper(), SECRET[:-1] + "0"])
def test_without_the_secret_nothing_is_shown_or_changed(store: Store, secret: str) -> None:
    store.ask("PUT", "global/0", b"address")
    for method in ("GET", "PUT", "DELETE"):
        assert store.ask(method, "global/0", b"evil" if method == "PUT" else b"", secret) == (403, b"")
    assert store.answer(store.connect(b"GET /global/0 HTTP/1.1\r\n\r\n")) == (403, b"")
    assert store.ask("GET", "global/0") == (200, b"address")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\n\r\n", 400),
        (b"PUT /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"PUT /a HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"PUT /a HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        (b"\xff" * LONGEST_HEAD, 400),
        (b"PUT /a HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 403),
    ],
)
def test_requests_that_are_none_are_refused(store: Store, request_: bytes, status: int) -> None:
    assert store.answer(store.connect(request_)) == (status, b"")


def test_other_methods_and_large_values_are_refused(store: Store) -> None:
    assert store.ask("POST", "global/0", b"x") == (501, b"")
    largest = bytes(LARGEST_VALUE)
    assert store.ask("PUT", "global/0", largest) == (200, b"")
    assert store.ask("GET", "global/0") == (200, largest)
    head = f"PUT /{SECRET}:{store.port}/global/0 HTTP/1.1\r\nContent-Length: {LARGEST_VALUE + 1}\r\n\r\n"
    assert store.answer(store.connect(head.encode()))[0] == 413
    assert store.ask("GET", "global/0") == (200, largest)


def test_the_store_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "MOST_BYTES", 100)
    monkeypatch.setattr(rendezvous, "MOST_KEYS", 3)
    assert store.ask("PUT", "a", bytes(80)) == (200, b"")
    assert store.ask("PUT", "b", bytes(80)) == (507, b"")
    assert store.ask("PUT", "a", bytes(90)) == (200, b"")  # it takes the place of the earlier value
    assert store.ask("DELETE", "a") == (200, b"")
    assert [store.ask("PUT", key)[0] for key in ("a", "b", "c", "d", "a")] == [200, 200, 200, 507, 200]


def test_slow_requests_end_and_do_not_keep_others_out(store: Store) -> None:
    slow = [store.connect(b"GET /") for _ in range(MOST_REQUESTS + 1)]
    store.turn(0.5)
    assert store.ask("PUT", "global/0", b"address") == (200, b"")
    assert slow[0].recv(1) == b""
    store.turn(rendezvous.REQUEST_SECONDS)
    assert slow[-1].recv(1) == b""
    assert store.timers.seconds_left() is None


def test_a_reader_that_stops_is_dropped_and_others_are_served(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    large = bytes(8 << 20)  # more than the kernel buffers
    monkeypatch.setattr(rendezvous, "LARGEST_VALUE", len(large))
    assert store.ask("PUT", "global/0", large) == (200, b"")
    stopped = socket.socket()
    store.connections.append(stopped)
    stopped.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stopped.connect(("127.0.0.1", store.port))
    stopped.sendall(f"GET /{SECRET}:{store.port}/global/0 HTTP/1.1\r\n\r\n".encode())
    store.turn(0.2)
    assert store.ask("GET", "global/0") == (200, large)
    store.turn(rendezvous.REQUEST_SECONDS)
    assert store.timers.seconds_left() is None
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := stopped.recv(1 << 16):
            data += more
    assert 0 < len(data) < len(large)


def test_where_it_listens() -> None:
    port = find_free_port()
    with listen("127.0.0.1", port) as listener:
        assert listener.getsockname() == ("127.0.0.1", port)
        with pytest.raises(OSError) as taken:
            listen("127.0.0.1", port)
        assert taken.value.errno == errno.EADDRINUSE
    for elsewhere in ("192.0.2.1", "a-name.example"):  # behind a gateway, or not looked up
        with listen(elsewhere, port) as listener:
            assert listener.getsockname() == ("0.0.0.0", port)
    with pytest.raises(OSError, match="over IPv4 only"):
        listen("fd00::1", port)


def test_nothing_listens_after_the_end(store: Store) -> None:
    held = store.connect(b"GET /")
    store.turn(0.1)
    store.rendezvous.close()
    store.rendezvous.close()
    assert held.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        store.connect()
