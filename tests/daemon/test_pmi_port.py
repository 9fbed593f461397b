"""The PMI port: which connections it serves, and what those that it does not serve can cost."""

from __future__ import annotations

import os
import resource
import select
import socket
import time
from collections.abc import Iterator

import pytest

from mpilaunch.daemon import callers
from mpilaunch.daemon.mpi import pmi_port
from mpilaunch.daemon.mpi.pmi_port import MOST_UNNAMED, MOST_WRONG, PmiPort, live_owner
from mpilaunch.daemon.poller import Poller, Timers

NOBODY = 65534


class Served:
    """A port in a loop of its own, and what came of it."""

    def __init__(self) -> None:
        self.poller, self.timers = Poller(), Timers()
        self.opened: list[tuple[int, bytes]] = []
        self.connections: list[socket.socket] = []
        self.notes: list[str] = []
        self.port = PmiPort("job", 4, self.poller, self.timers.set, self._opened, self.notes.append)

    def _opened(self, rank: int, connection: socket.socket, data: bytes) -> None:
        self.opened.append((rank, data))
        self.connections.append(connection)

    def connect(self, data: bytes = b"") -> socket.socket:
        """Connect, and send something."""
        host, _, port = self.port.address.partition(":")
        connection = socket.create_connection((host, int(port)), timeout=5)
        self.connections.append(connection)
        connection.sendall(data)
        return connection

    def turn(self, seconds: float = 0.2) -> None:
        """Let the loop run until nothing has happened for a moment."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.poller.run(0.01)
            self.timers.run()

    def answer(self, data: bytes) -> bytes:
        """Return what a new connection gets for these bytes, b"" when it is closed."""
        connection = self.connect(data)
        until = time.monotonic() + 20
        while not select.select([connection], [], [], 0)[0] and time.monotonic() < until:
            self.poller.run(0.01)
            self.timers.run()
        try:
            return connection.recv(200)
        except ConnectionResetError:
            return b""


def first_line(number: str) -> bytes:
    return f"cmd=initack pmiid={number}\n".encode()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.port.close()
    for connection in served.connections:
        connection.close()


def as_user(uid: int, served: Served, data: bytes) -> None:
    """Connect as a user, send something, and close the connection before the port accepts it."""
    child = os.fork()
    if not child:
        try:
            os.setuid(uid)
            served.connect(data).close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def test_a_rank_is_served_once_by_its_id(served: Served) -> None:
    number = served.port.expect(2)
    answer = served.answer(first_line(number) + b"cmd=init\n")
    assert answer == b"cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=2\ncmd=set debug=0\n"
    assert served.opened == [(2, b"cmd=init\n")]
    for _ in range(2 * MOST_WRONG):
        assert served.answer(first_line(number)) == b""
    # Whoever sends an ID that was good has not guessed it: that closes no port.
    assert served.notes == [] and served.answer(first_line(served.port.expect(3))) != b""


@pytest.mark.testbed
@pytest.mark.parametrize("uid", [0, NOBODY])
def test_a_connection_that_was_closed_before_it_was_accepted_is_nobodys(served: Served, uid: int) -> None:
    # The kernel reports uid 0 for it: with a daemon of root another user's connection counted as root's.
    as_user(uid, served, first_line(served.port.expect(0)) + b"cmd=init\n")
    served.turn()
    assert served.opened == []


def test_the_owner_of_a_connection_is_known_only_while_it_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            assert live_owner(accepted) == os.getuid()
            client.close()
            assert live_owner(accepted) is None


@pytest.mark.testbed
def test_a_live_connection_of_another_user_is_refused_with_the_right_id(served: Served) -> None:
    number = served.port.expect(0)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setuid(NOBODY)
            connection = served.connect(first_line(number))
            os.write(write, b"x")
            connection.recv(1)
        finally:
            os._exit(0)
    os.read(read, 1)
    served.turn()
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    assert served.opened == []
    assert served.answer(first_line(number)).startswith(b"cmd=initack rc=0")


@pytest.mark.parametrize(
    "line", [b"cmd=initack\n", b"cmd=initack pmiid=\n", b"cmd=initack pmiid=-1\n", b"cmd=initack pmiid=99999999999\n", b"\n"]
)
def test_a_first_line_without_an_id_closes_the_connection(served: Served, line: bytes) -> None:
    served.port.expect(0)
    assert served.answer(line) == b""
    assert served.opened == [] and served.notes == []


def test_ids_cannot_be_tried_out(served: Served) -> None:
    right = int(served.port.expect(0))
    for attempt in range(1, MOST_WRONG + 1):
        assert served.answer(first_line(str(right ^ attempt))) == b""
    first, last = served.notes
    assert "gave a wrong PMI_ID" in first
    assert f"has had {MOST_WRONG} wrong PMI_IDs, and is closed" in last
    with pytest.raises(ConnectionRefusedError):
        served.connect()


def test_ids_are_random_and_fit_the_libraries_numbers(served: Served) -> None:
    numbers = [int(served.port.expect(rank)) for rank in range(1000)]
    assert len(set(numbers)) == 1000 and all(0 < number < 1 << 31 for number in numbers)
    assert sum(number >> 30 for number in numbers) > 300  # the highest bit is random too


def test_a_rank_that_has_ended_is_not_served(served: Served) -> None:
    number = served.port.expect(0)
    served.port.refuse(0)
    assert served.answer(first_line(number)) == b""
    assert served.opened == []


@pytest.fixture
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pmi_port, "FIRST_LINE_SECONDS", 0.3)


def test_silent_connections_are_closed_in_time(short_deadline: None, served: Served) -> None:
    first = served.connect()
    served.turn(0.15)
    second = served.connect(b"cmd=initack")
    served.turn(0.2)
    assert first.recv(1) == b""
    second.setblocking(False)
    with pytest.raises(BlockingIOError):
        second.recv(1)
    served.turn(0.3)
    assert second.recv(1) == b""
    assert served.timers.seconds_left() is None


def test_silent_connections_keep_no_rank_out(served: Served) -> None:
    silent = [served.connect() for _ in range(MOST_UNNAMED + 20)]
    served.turn(0.5)
    assert served.answer(first_line(served.port.expect(1))) != b""
    assert [connection.recv(1) for connection in silent[:20]] == [b""] * 20
    silent[-1].setblocking(False)
    with pytest.raises(BlockingIOError):
        silent[-1].recv(1)


def test_without_a_free_descriptor_the_port_waits(served: Served) -> None:
    number = served.port.expect(1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    connection = served.connect(first_line(number))
    highest = max(map(int, os.listdir("/proc/self/fd")))
    fillers = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers) + 1, limits[1]))
        served.poller.run(0.1)
        turns = 0
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            served.poller.run(0.05)
            turns += 1
        assert turns < 10  # it does not spin
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for filler in fillers:
            os.close(filler)
    served.turn(callers.PAUSE_SECONDS + 0.3)
    assert served.opened == [(1, b"")] and connection.recv(200) != b""
