"""The poller of the daemon's loop, on real descriptors."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpilaunch.daemon.poller import Poller


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Give two sockets that are connected."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_what_can_be_read_is_reported_and_what_cannot_is_not(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    poller, called = Poller(), []
    poller.watch(ours, lambda: called.append("ours"))
    poller.watch(theirs.fileno(), lambda: called.append("theirs"))
    poller.run(0)
    assert called == []
    theirs.send(b"x")
    poller.run(None)
    poller.run(-1.0)  # a time that is over already; nothing has been read, so it is told again
    assert called == ["ours", "ours"]


def test_room_to_write_is_announced_to_those_who_ask_for_it(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    poller, called = Poller(), []
    poller.watch(ours, lambda: called.append("reading"))
    poller.run(0)
    poller.watch(ours, lambda: called.append("both"), writing=True)
    poller.run(0)
    poller.watch(ours, lambda: called.append("writing"), reading=False, writing=True)
    theirs.send(b"x")
    poller.run(0)
    assert called == ["both", "writing"]


def test_room_to_write_is_watched_as_long_as_it_is_wanted(pair: tuple[socket.socket, socket.socket]) -> None:
    poller, called = Poller(), []
    for wanted in (False, True, True, False, False, True):
        poller.watch_writing(pair[0], lambda: called.append("room"), wanted)
        poller.run(0)
    assert called == ["room"] * 3


def test_what_was_forgotten_is_not_called_even_by_an_event_of_the_same_turn(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    poller, called = Poller(), []

    def forget_both() -> None:
        called.append("one")
        for one in pair:
            poller.forget(one)
        # The number of one that is closed is the next to be given away.
        number = theirs.detach()
        os.close(number)
        again = os.dup(ours.fileno())
        assert again == number
        poller.watch(again, lambda: called.append("another"))

    ours.send(b"x")
    theirs.send(b"x")
    for one in pair:
        poller.watch(one, forget_both)
    number = theirs.fileno()
    poller.run(0)
    os.close(number)
    assert called == ["one"]
    assert ours not in poller and number in poller


def test_a_poller_is_ready_when_one_of_its_own_is(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    inner, outer, called = Poller(), Poller(), []
    inner.watch(ours, lambda: called.append("inner"))
    outer.watch(inner, lambda: inner.run(0))
    outer.run(0)
    assert called == []
    theirs.close()  # an end is told as bytes are
    outer.run(0)
    assert called == ["inner"]


def test_it_waits_no_longer_than_its_limit() -> None:
    begun = time.monotonic()
    Poller().run(0.05)
    assert time.monotonic() - begun >= 0.05


def test_a_file_cannot_be_waited_for(tmp_path: Path) -> None:
    poller = Poller()
    with (tmp_path / "file").open("wb") as opened:
        file = opened.fileno()
        with pytest.raises(PermissionError):
            poller.watch(file, lambda: None)
        assert file not in poller
