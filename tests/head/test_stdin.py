"""The head's stdin: read as far as the ranks can take it; a file's offset is set back to what they have read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from mpilaunch.errors import LaunchError
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.output.spooled_stdin import SpooledStdin
from mpilaunch.head.output.stdin import StdinForwarder
from mpilaunch.wire.frames import STDIN, WireError, stream_channel

pytestmark = pytest.mark.usefixtures("stdin_given_back")


class Link:
    """A link that accepts stdin within its credit and records it."""

    def __init__(self, credit: int) -> None:
        self.left = credit
        self.got = b""
        self.ended = False
        self.session = self

    def credit(self, channel: int) -> int:
        return 0 if self.ended else self.left

    def send_input(self, channel: int, data: bytes) -> None:
        assert len(data) <= self.left and not self.ended
        self.left -= len(data)
        self.got += data
        self.ended = not data


def become_stdin(descriptor: int) -> None:
    os.dup2(descriptor, 0)
    os.close(descriptor)


def stdin_is_a_file(folder: Path, data: bytes) -> None:
    (folder / "stdin").write_bytes(data)
    become_stdin(os.open(folder / "stdin", os.O_RDONLY))


def stdin_is_a_pipe() -> int:
    read, write = os.pipe()
    become_stdin(read)
    return write


def forward(
    links: dict[int, Link], body: Callable[[StdinForwarder], Any], kind: type[StdinForwarder] = StdinForwarder
) -> None:
    async def main() -> None:
        forwarder = kind({rank: rank for rank in links}, cast("dict[int, NodeLink]", links))
        forwarder.more_credit()
        await body(forwarder)
        forwarder.close()

    asyncio.run(main())


async def turns() -> None:
    """Run one round of the event loop."""
    for _ in range(5):
        await asyncio.sleep(0.001)


def test_a_file_is_read_as_far_as_the_credit_goes(tmp_path: Path) -> None:
    data = os.urandom(100_000)
    stdin_is_a_file(tmp_path, data)
    link = Link(30_000)

    async def body(forwarder: StdinForwarder) -> None:
        await turns()
        assert link.got == data[:30_000] and not link.ended
        link.left = 500_000
        forwarder.more_credit()
        await turns()
        assert link.got == data and link.ended

    forward({0: link}, body)


def test_a_pipe_is_not_read_before_the_ranks_can_accept_data() -> None:
    write = stdin_is_a_pipe()
    os.write(write, b"abc")
    link = Link(0)

    async def body(forwarder: StdinForwarder) -> None:
        await turns()
        assert link.got == b""
        link.left = 2
        forwarder.more_credit()
        await turns()
        assert link.got == b"ab"
        link.left = 10
        forwarder.more_credit()
        await turns()
        assert link.got == b"abc" and not link.ended
        os.write(write, b"def")
        await turns()
        assert link.got == b"abcdef"
        os.close(write)
        await turns()
        assert link.ended

    forward({0: link}, body)


@pytest.mark.parametrize("kind", [StdinForwarder, SpooledStdin])
def test_each_credit_costs_the_same_however_many_ranks_read(tmp_path: Path, kind: type[StdinForwarder]) -> None:
    count, asked = 300, 0
    stdin_is_a_file(tmp_path, b"x" * 100)

    class Counting(Link):
        def credit(self, channel: int) -> int:
            nonlocal asked
            asked += 1
            return super().credit(channel)

    links: dict[int, Link] = {rank: Counting(0) for rank in range(count)}

    async def body(forwarder: StdinForwarder) -> None:
        nonlocal asked
        asked = 0
        for rank, link in links.items():
            link.left = 10
            forwarder.credit(stream_channel(rank, STDIN))
        await turns()

    forward(links, body, kind)
    assert all(len(link.got) == 10 for link in links.values())
    assert asked < 30 * count


def test_of_several_ranks_the_slowest_sets_the_pace(tmp_path: Path) -> None:
    stdin_is_a_file(tmp_path, b"x" * 1000)
    links = {0: Link(1000), 1: Link(10)}

    async def body(forwarder: StdinForwarder) -> None:
        await turns()
        assert [len(link.got) for link in links.values()] == [10, 10]
        # With the slow one gone, the other gets the rest.
        forwarder.rank_ended(1, 10)
        await turns()
        assert [len(link.got) for link in links.values()] == [1000, 10]

    forward(links, body)


def test_the_offset_of_a_file_is_set_back_to_what_the_rank_has_read(tmp_path: Path) -> None:
    stdin_is_a_file(tmp_path, b"one\ntwo\nthree\n")
    os.lseek(0, 4, os.SEEK_SET)
    link = Link(1000)

    async def body(forwarder: StdinForwarder) -> None:
        await turns()
        assert link.got == b"two\nthree\n"
        forwarder.rank_ended(0, 4)
        await turns()

    forward({0: link}, body)
    assert os.read(0, 100) == b"three\n"


def test_no_node_moves_the_offset_beyond_what_its_rank_was_sent(tmp_path: Path) -> None:
    stdin_is_a_file(tmp_path, b"one\ntwo\n")
    os.lseek(0, 4, os.SEEK_SET)

    async def body(forwarder: StdinForwarder) -> None:
        await turns()
        with pytest.raises(WireError, match="rank 0 has read 1000000000000000000000 bytes of stdin, of 4 sent"):
            forwarder.rank_ended(0, 10**21)
        assert os.lseek(0, 0, os.SEEK_CUR) == 8

    forward({0: Link(1000)}, body)


def test_a_rank_that_does_not_get_stdin_ends_without_a_trace(tmp_path: Path) -> None:
    stdin_is_a_file(tmp_path, b"one\n")
    link = Link(1000)

    async def body(forwarder: StdinForwarder) -> None:
        forwarder.rank_ended(5, 0)
        assert os.lseek(0, 0, os.SEEK_CUR) == 4 and link.ended

    forward({0: link}, body)


def test_what_comes_after_the_end_of_the_rank_is_left_to_others() -> None:
    write = stdin_is_a_pipe()
    link = Link(1000)

    async def body(forwarder: StdinForwarder) -> None:
        forwarder.rank_ended(0, 0)
        os.write(write, b"for the next")
        await turns()
        assert link.got == b""

    forward({0: link}, body)
    os.close(write)
    assert os.read(0, 100) == b"for the next"


def test_without_a_rank_nothing_is_read(tmp_path: Path) -> None:
    stdin_is_a_file(tmp_path, b"one\n")

    async def body(forwarder: StdinForwarder) -> None:
        forwarder.more_credit()
        await turns()

    forward({}, body)
    assert os.lseek(0, 0, os.SEEK_CUR) == 0


def test_the_channel_is_that_of_the_ranks_stdin(tmp_path: Path) -> None:
    stdin_is_a_file(tmp_path, b"one\n")
    channels: set[int] = set()

    class Noting(Link):
        def send_input(self, channel: int, data: bytes) -> None:
            channels.add(channel)
            super().send_input(channel, data)

    async def body(forwarder: StdinForwarder) -> None:
        await turns()

    forward({7: Noting(1000)}, body)
    assert channels == {stream_channel(7, STDIN)}


def test_independent_commands_get_stdin_each_at_its_own_pace() -> None:
    """One is not ready yet, one takes all; the input is read as far as the quickest goes, and all of it reaches the last."""
    write = stdin_is_a_pipe()
    links = {0: Link(0), 1: Link(1 << 20)}

    async def body(forwarder: StdinForwarder) -> None:
        os.write(write, b"first ")
        await turns()
        assert (links[0].got, links[1].got) == (b"", b"first ")
        os.write(write, b"second")
        os.close(write)
        await turns()
        assert (links[1].got, links[1].ended) == (b"first second", True)
        forwarder.rank_ended(1, 12)
        links[0].left = 8
        forwarder.more_credit()
        assert (links[0].got, links[0].ended) == (b"first se", False)
        links[0].left = 8
        forwarder.more_credit()
        assert (links[0].got, links[0].ended) == (b"first second", True)
        forwarder.rank_ended(0, 12)

    forward(links, body, SpooledStdin)


def test_a_file_is_sent_to_independent_commands_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such")
    data = bytes(range(256)) * 2000
    stdin_is_a_file(tmp_path, b"before" + data)
    os.lseek(0, 6, os.SEEK_SET)
    links = {0: Link(0), 1: Link(1 << 20)}

    async def body(forwarder: StdinForwarder) -> None:
        await turns()
        assert (links[0].got, links[1].got, links[1].ended) == (b"", data, True)
        links[0].left = 300_000
        forwarder.more_credit()
        assert (links[0].got, links[0].ended) == (data[:300_000], False)
        os.truncate(tmp_path / "stdin", 6 + 300_000)
        links[0].left = 1 << 20
        with pytest.raises(LaunchError, match="the file on stdin has become shorter while hosts were to read it"):
            forwarder.more_credit()

    forward(links, body, SpooledStdin)


def test_nothing_is_read_while_no_independent_command_can_take_it() -> None:
    write = stdin_is_a_pipe()
    links = {0: Link(0), 1: Link(4)}

    async def body(forwarder: StdinForwarder) -> None:
        os.write(write, b"12345678")
        await turns()
        assert links[1].got == b"1234" and os.read(0, 100) == b"5678"
        with pytest.raises(WireError):
            forwarder.rank_ended(1, 5)

    forward(links, body, SpooledStdin)
    os.close(write)


def test_stdin_that_cannot_be_kept_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such")
    os.close(stdin_is_a_pipe())

    async def body(forwarder: StdinForwarder) -> None:
        raise AssertionError("it was made")

    with pytest.raises(LaunchError, match="cannot keep stdin for the hosts that start later: no such file"):
        forward({0: Link(0), 1: Link(0)}, body, SpooledStdin)
