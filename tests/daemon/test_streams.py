"""How the daemon forwards the output of ranks: lines of about the same time together, much output at once."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from mpilaunch.daemon.poller import Poller, Timers
from mpilaunch.daemon.ranks import streams
from mpilaunch.daemon.ranks.streams import BLOCK, ENOUGH, Forwarder
from mpilaunch.wire.frames import DATA, STDOUT, FrameReader, rank_of, stream_channel
from mpilaunch.wire.session import Session

RANKS = 4
WINDOW = ENOUGH - 1


class Node:
    """A forwarder with the pipes of ranks that this test writes to."""

    def __init__(self) -> None:
        self.session, self.poller, self.timers = Session(), Poller(), Timers()
        self.drained = 0
        self.forwarder = Forwarder(self.session, self.poller, self.timers, self._count)
        windows = [1 << 20, 1 << 20, 1 << 20, WINDOW]
        self.pipes = [self.forwarder.open_rank(rank, False, True, window, False) for rank, window in enumerate(windows)]
        self._frames = FrameReader()

    def _count(self) -> None:
        self.drained += 1

    def write(self, rank: int, data: bytes) -> None:
        os.write(self.pipes[rank][1], data)

    def close(self, rank: int) -> None:
        for descriptor in self.pipes[rank].values():
            os.close(descriptor)
        self.pipes[rank] = {}

    def sent(self) -> list[tuple[int, bytes]]:
        """Run one turn of the loop without its timers; return the frames that it has sent, as rank and data."""
        self.poller.run(0)
        found = [one for one in self._frames.feed(self.session.data_to_send()) if one[0] == DATA]
        assert {channel for _, channel, _ in found} <= {stream_channel(rank, STDOUT) for rank in range(RANKS)}
        return [(rank_of(channel), data) for _, channel, data in found]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(streams, "LULL", 60.0)  # longer than this machine may pause
    node = Node()
    yield node
    for rank in range(RANKS):
        node.close(rank)


def test_the_first_line_goes_at_once_and_the_others_of_its_time_together(node: Node) -> None:
    node.forwarder.send_held()
    for rank in (1, 2, 3, 1):
        node.write(rank, b"line\n")
        assert node.sent() == []
    node.timers.set("held", 0, node.forwarder.send_held)  # its time has come
    node.timers.run()
    assert node.sent() == [(1, b"line\n"), (2, b"line\n"), (3, b"line\n"), (1, b"line\n")]
    node.write(0, b"last\n")
    assert (node.sent(), "held" in node.timers) == ([], True)


def test_blocks_of_a_stream_are_joined_and_lines_keep_their_order(node: Node) -> None:
    node.forwarder.send_held()
    block = b"x" * BLOCK
    for rank, data in ((0, b"a\n"), (0, b"b\n"), (1, block), (0, b"c\n"), (1, block), (0, block), (1, b"d\n")):
        node.write(rank, data)
        assert node.sent() == []
    node.forwarder.send_held()
    assert node.sent() == [(0, b"a\nb\n"), (1, block + block), (0, b"c\n" + block), (1, b"d\n")]


def test_a_line_after_silence_goes_at_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.write(0, b"first\n")
    assert (node.sent(), "held" in node.timers) == ([(0, b"first\n")], False)
    monkeypatch.setattr(streams, "LULL", 0.0)
    node.write(0, b"second\n")
    assert node.sent() == [(0, b"second\n")]


def test_much_output_goes_at_once(node: Node) -> None:
    node.forwarder.send_held()
    node.write(1, b"line\n")
    assert node.sent() == []
    node.write(2, b"x" * ENOUGH)
    assert node.sent() == [(1, b"line\n"), (2, b"x" * ENOUGH)]
    assert "held" not in node.timers


def test_what_is_held_has_used_its_credit(node: Node) -> None:
    node.forwarder.send_held()
    node.write(3, b"x" * WINDOW)
    assert node.sent() == []
    node.write(3, b"more\n")
    assert node.sent() == []
    node.forwarder.send_held()
    assert node.sent() == [(3, b"x" * WINDOW)]


@pytest.mark.parametrize("end", ["stream", "exit"])
def test_an_end_sends_what_is_held(node: Node, end: str) -> None:
    node.forwarder.send_held()
    node.write(0, b"last words\n")
    node.write(1, b"line\n")
    assert node.sent() == []
    if end == "exit":
        node.forwarder.send_held()
    else:
        node.close(0)
    assert (node.sent(), node.drained) == ([(0, b"last words\n"), (1, b"line\n")], end == "stream")


def test_a_full_wire_pauses_the_reading(node: Node) -> None:
    node.forwarder.pause(True)
    node.write(0, b"line\n")
    assert node.sent() == []
    node.forwarder.pause(False)
    assert node.sent() == [(0, b"line\n")]
