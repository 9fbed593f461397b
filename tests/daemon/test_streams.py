"""How the daemon forwards the output of ranks: lines of about the same time together, and much output without a pause."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from mpilaunch.daemon.poller import Poller, Timers
from mpilaunch.daemon.ranks import streams
from mpilaunch.daemon.ranks.streams import FEW, LULL, Forwarder
from mpilaunch.wire.frames import DATA, STDOUT, FrameReader, rank_of, stream_channel
from mpilaunch.wire.session import Session

RANKS = 4


class Node:
    """A forwarder with the pipes of ranks that this test writes to."""

    def __init__(self) -> None:
        self.session, self.poller, self.timers = Session(), Poller(), Timers()
        self.drained = 0
        self.forwarder = Forwarder(self.session, self.poller, self.timers, self._count)
        self.pipes = [self.forwarder.open_rank(rank, False, True, 1 << 20, False) for rank in range(RANKS)]
        self._frames = FrameReader()

    def _count(self) -> None:
        self.drained += 1

    def write(self, rank: int, data: bytes) -> None:
        os.write(self.pipes[rank][1], data)

    def close(self, rank: int) -> None:
        for descriptor in self.pipes[rank].values():
            os.close(descriptor)
        self.pipes[rank] = {}

    def sent(self) -> dict[int, int]:
        """Run one turn of the loop without its timers; return how many bytes of each rank it has sent."""
        self.poller.run(0)
        found = [one for one in self._frames.feed(self.session.data_to_send()) if one[0] == DATA]
        assert {channel for _, channel, _ in found} <= {stream_channel(rank, STDOUT) for rank in range(RANKS)}
        return {rank_of(channel): len(data) for _, channel, data in found}

    def wait(self) -> None:
        """Let the rest end."""
        assert "rest" in self.timers
        while "rest" in self.timers:
            self.timers.run()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(streams, "PERIOD", 60.0)  # longer than this machine may pause
    node = Node()
    yield node
    for rank in range(RANKS):
        node.close(rank)


def test_the_first_line_goes_at_once_and_the_others_of_its_time_together(node: Node) -> None:
    node.write(0, b"first\n")
    assert node.sent() == {0: 6}
    for rank in (1, 2, 3, 1):
        node.write(rank, b"line\n")
    assert node.sent() == {}, f"nothing is read for {LULL} s"
    node.wait()
    assert node.sent() == {1: 10, 2: 5, 3: 5}
    node.wait()
    node.write(0, b"last\n")
    assert node.sent() == {0: 5}


def test_much_output_is_read_without_a_rest(node: Node) -> None:
    for _ in range(3):
        node.write(2, b"x" * (FEW + 1))
        assert node.sent() == {2: FEW + 1}
    node.write(1, b"line\n")
    assert node.sent() == {1: 5}
    assert "rest" not in node.timers


def test_the_end_of_a_rank_ends_the_rest(node: Node) -> None:
    node.write(0, b"line\n")
    assert node.sent() == {0: 5}
    node.write(0, b"last words\n")
    node.close(0)
    node.forwarder.hurry()
    assert node.sent() == {0: 11}
    assert (node.sent(), node.drained) == ({}, 1)


def test_a_full_wire_pauses_the_reading_also_after_a_rest(node: Node) -> None:
    node.write(0, b"line\n")
    assert node.sent() == {0: 5}
    node.forwarder.pause(True)
    node.wait()
    node.write(0, b"line\n")
    assert node.sent() == {}
    node.forwarder.pause(False)
    assert node.sent() == {0: 5}
