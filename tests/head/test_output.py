"""The head's side of output: lines, credits, files and folding, with links that are only asked for credit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import UsageError
from mpilaunch.head import safe_files
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.output.forward import KEPT, LEAST_WINDOW, MOST_WINDOW, WINDOWS, OutputForwarder, Stream
from mpilaunch.job.output.lines import LONGEST_LINE
from mpilaunch.job.worlds import first_worlds
from mpilaunch.wire.frames import STDERR, STDOUT, stream_channel
from tests.support.command_line import job


class Link:
    """A link that records granted credit."""

    def __init__(self) -> None:
        self.granted: Counter[int] = Counter()
        self.flushed = 0
        self.session = self
        self.channel = self

    def grant(self, channel: int, size: int) -> None:
        self.granted[channel] += size

    def flush(self) -> None:
        self.flushed += 1


def out(rank: int) -> int:
    return stream_channel(rank, STDOUT)


def err(rank: int) -> int:
    return stream_channel(rank, STDERR)


def forward(words: str, body: Callable[[OutputForwarder, NodeLink], Coroutine[Any, Any, None] | None]) -> Link:
    """Run `body` with a forwarder, print everything, and return the link with its granted credit."""
    link = Link()

    async def main() -> None:
        forwarder = OutputForwarder(job(words), lambda error: None)
        forwarder.add_world(first_worlds(job(words))[0])
        running = body(forwarder, cast(NodeLink, link))
        if running is not None:
            await running
        await forwarder.drain()

    asyncio.run(main())
    return link


def printed(capfd: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    captured = capfd.readouterr()
    return captured.out.splitlines(), captured.err.splitlines()


# Pipes in place of files


@pytest.mark.parametrize("words", ["-np 1 --output-file pipe", "-np 2 -H local:2 --tag rank --output-file pipe"])
def test_a_slow_reader_of_a_pipe_slows_the_rank_and_holds_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    lines = b"x" * 63 + b"\n"

    async def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        granted = cast(Link, link).granted
        for _ in range(4):
            forwarder.data(link, out(0), lines * (forwarder.window // 64 // 4))
        began = time.monotonic()
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert time.monotonic() - began < 5, "the loop serves others"
        assert granted[out(0)] < forwarder.window, "what nobody has read gives no credit"
        forwarder.end(out(0))
        left = forwarder.window
        while left:
            with contextlib.suppress(BlockingIOError):
                left -= len(os.read(reader, 65536))
            await asyncio.sleep(0)

    link = forward(words, body)
    assert link.granted[out(0)] > 0
    os.close(reader)


def test_a_pipe_that_nobody_reads_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(safe_files, "PATIENCE", 0.1)
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)

    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        forwarder.data(link, out(0), b"x" * 200_000)

    forward("-np 1 --output-file pipe", body)
    assert "pipe: nobody has read it for 0.1 s: the files are incomplete from here on" in printed(capfd)[1][0]
    os.close(reader)


def test_a_pipe_that_nobody_reads_keeps_no_output_from_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)

    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        forwarder.data(link, err(0), b"said\n")
        forwarder.data(link, out(0), b"x" * 200_000)
        assert forwarder.held_up
        forwarder.abandon()
        forwarder.say("at the end\n")

    forward("-np 1 --tag rank --output-file pipe", body)
    assert [line.removeprefix("[0] ") for line in printed(capfd)[1]] == ["said", "at the end"]
    os.close(reader)


# Lines


def test_pieces_become_lines_and_two_ranks_never_share_one(capfd: pytest.CaptureFixture[str]) -> None:
    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        forwarder.data(link, out(0), b"one ")
        forwarder.data(link, out(1), b"two ")
        forwarder.data(link, out(0), b"line\nand")
        forwarder.data(link, out(1), b"lines\n")
        forwarder.end(out(0))
        forwarder.end(out(1))

    forward("-np 2 -H local:2", body)
    assert printed(capfd) == (["one line", "two lines", "and"], [])


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40)), max_size=30))
def test_however_the_bytes_are_cut_each_ranks_lines_are_its_own(pieces: list[tuple[int, bytes]]) -> None:
    read, write = os.pipe()
    kept = os.dup(1)
    os.dup2(write, 1)
    os.close(write)
    try:

        def body(forwarder: OutputForwarder, link: NodeLink) -> None:
            for rank, data in pieces:
                if data:
                    forwarder.data(link, out(rank), data)

        forward("-np 3 -H local:3 --tag {rank}:", body)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    whole = b""
    while piece := os.read(read, 65536):
        whole += piece
    os.close(read)
    lines = whole.split(b"\n")[:-1]
    for rank in range(3):
        wrote = b"".join(data for other, data in pieces if other == rank)
        tag = b"%d:" % rank
        mine = b"".join(line[len(tag) :] + b"\n" for line in lines if line.startswith(tag))
        whole = wrote if not wrote or wrote.endswith(b"\n") else wrote + b"\n"
        assert mine == re.sub(rb"(\r+)(?=[^\r\n])", rb"\g<1>" + tag, whole)
    assert all(line[:2] in (b"0:", b"1:", b"2:") for line in lines)


def test_the_two_streams_go_to_their_own_places_under_their_own_tags(capfd: pytest.CaptureFixture[str]) -> None:
    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        forwarder.data(link, out(1), b"a\n")
        forwarder.data(link, err(1), b"b\n")

    forward("-np 2 -H n1,n2 --tag {rank}{local_rank}{node_rank}{host}{stream}:", body)
    assert printed(capfd) == (["101n2stdout:a"], ["101n2stderr:b"])


def test_one_rank_without_a_tag_passes_bytes_as_they_are(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        for piece in (b"\0\xff", b"no newline", b"\r50%"):
            forwarder.data(link, out(0), piece)
        forwarder.end(out(0))

    forward("-np 1", body)
    assert capfdbinary.readouterr().out == b"\0\xffno newline\r50%"


def test_an_endless_line_is_split_at_the_limit(capfd: pytest.CaptureFixture[str]) -> None:
    block = b"x" * 200_000

    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        for _ in range(12):
            forwarder.data(link, out(0), block)

    forward("-np 2 -H local:2", body)
    lines = printed(capfd)[0]
    assert "".join(lines) == "x" * 2_400_000
    assert max(map(len, lines)) <= LONGEST_LINE + len(block)


def test_our_messages_are_printed_between_lines(capfd: pytest.CaptureFixture[str]) -> None:
    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        forwarder.data(link, err(0), b"half ")
        forwarder.say("note: of ours\n")
        forwarder.data(link, err(0), b"a line\n")

    forward("-np 2 -H local:2", body)
    assert printed(capfd) == ([], ["note: of ours", "half a line"])


# Terminals


def on_a_terminal(words: str, body: Callable[[OutputForwarder, NodeLink], Coroutine[Any, Any, None] | None]) -> bytes:
    """Run `body` with stdout on a terminal; return what was written there, with newlines as they were."""
    ours, terminal = pty.openpty()
    kept = os.dup(1)
    os.dup2(terminal, 1)
    os.close(terminal)
    try:
        with mock.patch.dict(os.environ, TERM="xterm"):
            forward(words, body)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    whole = b""
    try:
        while piece := os.read(ours, 65536):
            whole += piece
    except OSError:  # a terminal without a writer ends with EIO
        pass
    os.close(ours)
    return whole.replace(b"\r\n", b"\n")


@pytest.mark.parametrize("option", ["--tag rank", "--fold"])
def test_a_colour_left_open_reaches_neither_the_next_line_nor_the_prompt(option: str) -> None:
    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        forwarder.data(link, out(0), b"\x1b[31mred\n")
        forwarder.data(link, out(1), b"plain\n")
        forwarder.data(link, out(1), b"\x1b[32mgreen")

    assert on_a_terminal(f"-np 2 -H local:2 {option}", body) == (
        b"[0] \x1b[31mred\x1b[0m\n[1] plain\n[1] \x1b[32mgreen\x1b[0m\n"
    )


def test_an_unfinished_line_that_is_cut_leaves_no_colour_open() -> None:
    async def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        forwarder.data(link, out(0), b"\x1b[31m" + b"x" * 200)
        await asyncio.sleep(0.3)

    drawn = on_a_terminal("-np 2 -H local:2", body)
    assert re.search(rb"\x1b\[K\x1b\[31mx+\x1b\[0m", drawn)


def test_bytes_in_a_pipe_keep_their_colours(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    forward("-np 2 -H local:2 --tag rank", lambda forwarder, link: forwarder.data(link, out(0), b"\x1b[31mred\n"))
    assert capfdbinary.readouterr().out == b"[0] \x1b[31mred\n"


# Credits


@pytest.mark.parametrize("ranks", [1, 2, 64, 4096, 60_000])
def test_windows_are_bounded_together_and_each(ranks: int) -> None:
    async def main() -> int:
        return OutputForwarder(job(f"-np {ranks} --oversubscribe -H local:{ranks}"), lambda error: None).window

    window = asyncio.run(main())
    assert LEAST_WINDOW <= window <= MOST_WINDOW
    assert 2 * ranks * window <= WINDOWS or window == LEAST_WINDOW


@pytest.mark.parametrize("words", ["-np 2 -H local:2", "-np 1", "-np 2 -H local:2 --fold", "-np 2 -H local:2 --tag rank"])
def test_credit_is_granted_again_for_all_but_a_quarter_of_the_window(capfd: pytest.CaptureFixture[str], words: str) -> None:
    windows = []
    sent = 0

    async def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        nonlocal sent
        windows.append(forwarder.window)
        for number in range(60):
            piece = b"y" * (number * 997 % 90_000) + b"\n"
            sent += len(piece)
            forwarder.data(link, out(0), piece)
        await asyncio.sleep(0)

    link = forward(words, body)
    assert sent - windows[0] // 4 < link.granted[out(0)] <= sent
    assert link.flushed >= 1


def test_nothing_is_granted_before_it_is_written() -> None:
    read, write = os.pipe()
    kept = os.dup(1)
    os.dup2(write, 1)
    os.close(write)
    link = Link()
    size = 1 << 20

    async def main() -> None:
        forwarder = OutputForwarder(job("-np 1"), lambda error: None)
        forwarder.add_world(first_worlds(job("-np 1"))[0])
        forwarder.data(cast(NodeLink, link), out(0), bytes(size))
        for _ in range(50):
            await asyncio.sleep(0)
        assert link.granted[out(0)] == 0
        left = size
        while left:
            left -= len(os.read(read, left))
        await forwarder.drain()
        assert link.granted[out(0)] == size

    try:
        asyncio.run(main())
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(read)


# Last lines


def test_the_last_lines_of_stderr_are_kept(capfd: pytest.CaptureFixture[str]) -> None:
    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        forwarder.data(link, out(0), b"not this\n")
        for number in range(5000):
            forwarder.data(link, err(0), b"line %d\n" % number)
        forwarder.data(link, err(0), b"unfinished")
        kept = forwarder.last_lines(0)
        assert kept == (*(b"line %d" % number for number in range(5001 - len(kept), 5000)), b"unfinished")
        assert KEPT - 20 < len(b"\n".join(kept)) <= KEPT
        assert forwarder.last_lines(1) == ()

    forward("-np 2 -H local:2", body)


def test_a_long_last_line_is_cut_and_a_truncated_line_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        forwarder.data(link, err(0), b"x" * (KEPT - 4) + b"\nend\n")
        assert forwarder.last_lines(0) == (b"end",)

    forward("-np 2 -H local:2", body)


def test_merged_stderr_is_kept_from_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        forwarder.data(link, out(0), b"Traceback\n")
        assert forwarder.last_lines(0) == (b"Traceback",)

    forward("-np 2 -H local:2 --merge-stderr-to-stdout", body)


# The end of streams


def test_a_rank_is_drained_when_both_its_streams_have_ended(capfd: pytest.CaptureFixture[str]) -> None:
    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        assert not forwarder.drained(0)
        forwarder.end(out(0))
        assert not forwarder.drained(0)
        forwarder.end(err(0))
        assert forwarder.drained(0) and not forwarder.drained(1)

    forward("-np 2 -H local:2", body)


def test_with_merged_streams_the_one_is_enough(capfd: pytest.CaptureFixture[str]) -> None:
    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        forwarder.end(out(1))
        assert forwarder.drained(1) and not forwarder.drained(0)

    forward("-np 2 -H local:2 --merge-stderr-to-stdout", body)


def test_draining_prints_what_a_lost_node_left_unfinished(capfd: pytest.CaptureFixture[str]) -> None:
    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        forwarder.data(link, out(0), b"last words of a lost node")

    forward("-np 2 -H local:2", body)
    assert printed(capfd)[0] == ["last words of a lost node"]


# Files


def test_files_get_the_bytes_as_they_come(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        forwarder.data(link, out(1), b"\0half")
        assert (tmp_path / "rank-0001.out").read_bytes() == b"\0half", "at once, for who looks into it"
        forwarder.data(link, err(1), b"e\r\n")
        forwarder.end(out(1))

    forward(f"-np 2 -H local:2 --tag rank --output-filename {tmp_path}", body)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "rank-0000.out": b"",
        "rank-0000.err": b"",
        "rank-0001.out": b"\0half",
        "rank-0001.err": b"e\r\n",
    }


def test_merged_streams_have_one_file(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    forward(f"-np 1 --merge-stderr-to-stdout --output-filename {tmp_path}", lambda forwarder, link: None)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0000.out"]


def test_file_names_sort_as_ranks_do(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    forward(f"-np 10001 --oversubscribe -H local:10001 --merge-stderr-to-stdout --output-filename {tmp_path}", lambda *_: None)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert (names[0], names[-1], len(names)) == ("rank-00000.out", "rank-10000.out", 10001)


def test_a_directory_that_cannot_be_made_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"file/logs/rank-0000.out: the ranks' output cannot go there: Not a directory"):
        forward(f"-np 1 --output-filename {tmp_path}/file/logs", lambda forwarder, link: None)


def test_a_full_disk_is_reported_once_and_the_output_continues(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        full = os.open("/dev/full", os.O_WRONLY)
        file = forwarder._streams[out(0)].file
        assert file is not None
        os.dup2(full, file.descriptor)
        os.close(full)
        for _ in range(3):
            forwarder.data(link, out(0), b"line\n")
        assert forwarder.lost is not None

    forward(f"-np 1 --tag rank --output-filename {tmp_path}", body)
    lines, said = printed(capfd)
    assert lines == ["[0] line"] * 3
    assert len(said) == 1 and "rank 0: No space left on device: the files are incomplete from here on" in said[0]


# Folding


def test_equal_texts_are_printed_once_behind_the_names_of_their_nodes(capfd: pytest.CaptureFixture[str]) -> None:
    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        for rank, text in enumerate((b"same\nlines", b"other", b"same\nlines\n", b"")):
            if text:
                forwarder.data(link, out(rank), text)
            forwarder.end(out(rank))
        forwarder.data(link, err(3), b"error")

    forward("-np 4 -H node[01-04] --fold", body)
    assert printed(capfd) == (["node[01,03]: same", "node[01,03]: lines", "node02: other"], ["node04: error"])


def test_more_than_can_be_folded_is_printed_at_once(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpilaunch.head.output.forward.MOST_FOLDED", 1000)

    def body(forwarder: OutputForwarder, link: NodeLink) -> None:
        forwarder.data(link, out(0), b"a" * 600 + b"\n")
        forwarder.data(link, out(1), b"a" * 600 + b"\n")
        forwarder.data(link, out(1), b"after it\n")

    forward("-np 2 -H n1,n2 --fold", body)
    lines, said = printed(capfd)
    assert lines == ["n[1-2]: " + "a" * 600, "after it"]
    assert len(said) == 1 and "no longer folded from here on" in said[0]


# Messages of mpilaunch


def test_texts_of_a_node_reach_no_terminal_as_control_sequences(capfd: pytest.CaptureFixture[str]) -> None:
    forward("-np 2 -H local:2", lambda forwarder, link: forwarder.say("rank 0: GPU-\x1b[2J\x9b1m\tx\r\n"))
    assert printed(capfd) == ([], ["rank 0: GPU-\\x1b[2J\\x9b1m\tx\\x0d"])


def test_a_dump_of_stacks_keeps_what_came_before_it() -> None:
    """However it is cut; Python writes the first words of a dump at once."""
    frames = [b"  File %d\n" % number for number in range(3_000)]
    writes = [b"the reason\n", b"Fatal Python error: ", b"Aborted", b"\n\n", *frames]
    for blocks in (writes, [b"".join(writes)], [b"".join(writes[:2]), b"".join(writes[2:])]):
        stream = Stream(0, STDERR, None, False, None, False)
        for block in blocks:
            stream.keep(block)
        assert stream.before == b"the reason\nFatal Python error: Aborted\n"
        assert b"".join(frames).endswith(stream.kept) and len(stream.kept) == KEPT
