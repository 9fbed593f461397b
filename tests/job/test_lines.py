"""Whole lines out of blocks, tags before them, and progress bars as a terminal would show them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.job.output.lines import LineJoiner, as_shown, close_colours, tag_lines


@given(st.lists(st.binary(max_size=12).map(lambda block: block.replace(b"a", b"\n"))))
def test_lines_come_out_whole_and_nothing_is_lost(blocks: list[bytes]) -> None:
    joiner = LineJoiner()
    out = [joiner.feed(block) for block in blocks]
    assert all(lines == b"" or lines.endswith(b"\n") for lines in out)
    rest = joiner.finish()
    whole = b"".join(blocks)
    missing = b"" if whole.endswith(b"\n") or not whole else b"\n"
    assert b"".join(out) + rest == whole + missing


def test_a_line_without_an_end_is_broken_at_the_limit() -> None:
    joiner = LineJoiner(longest=10)
    assert joiner.feed(b"x" * 10) == b""
    assert joiner.feed(b"y") == b"x" * 10 + b"y\n"
    assert joiner.feed(b"z\n") == b"z\n"


@given(st.lists(st.binary(max_size=8).map(lambda line: line.replace(b"\n", b""))), st.binary(max_size=6))
def test_every_line_gets_the_tag_once(lines: list[bytes], prefix: bytes) -> None:
    prefix = prefix.replace(b"\n", b"").replace(b"\r", b"")
    lines = [line.replace(b"\r", b"") for line in lines]
    if lines:
        text = b"".join(line + b"\n" for line in lines)
        assert tag_lines(text, prefix) == b"".join(prefix + line + b"\n" for line in lines)


def test_of_a_progress_bar_the_last_drawing_is_shown() -> None:
    assert as_shown(b"\r10%\r20%\r100%\nnext\r\nplain\n") == b"100%\nnext\nplain\n"
    assert as_shown(b"no return\n") == b"no return\n"


def test_the_tag_stands_again_where_a_carriage_return_would_hide_it() -> None:
    assert tag_lines(b"10%\r20%\r\nplain\n\rlast\n", b"\\1[0] ") == (
        b"\\1[0] 10%\r\\1[0] 20%\r\n\\1[0] plain\n\\1[0] \r\\1[0] last\n"
    )
    assert tag_lines(b"10%\r\r20%\n", b"") == b"10%\r\r20%\n"


@pytest.mark.parametrize(
    ("lines", "closed"),
    [
        (b"plain\n", b"plain\n"),
        (b"\x1b[31mred\nplain\n", b"\x1b[31mred\x1b[0m\nplain\n"),
        (b"\x1b[1;31mred\x1b[0m\n", b"\x1b[1;31mred\x1b[0m\n"),
        (b"\x1b[31mred\x1b[m\n", b"\x1b[31mred\x1b[m\n"),
        (b"\x1b[0m\x1b[01;32mgreen\n", b"\x1b[0m\x1b[01;32mgreen\x1b[0m\n"),
        (b"\x1b[38;5;0mblack\x1b[K\n", b"\x1b[38;5;0mblack\x1b[K\x1b[0m\n"),
        (b"\x1b[31ma\x1b[0mb\x1b[32mc\n\x1b[44md\n", b"\x1b[31ma\x1b[0mb\x1b[32mc\x1b[0m\n\x1b[44md\x1b[0m\n"),
        (b"\x1b[2Kcleared\n", b"\x1b[2Kcleared\n"),
    ],
)
def test_a_colour_ends_with_its_line(lines: bytes, closed: bytes) -> None:
    assert close_colours(lines) == closed


@given(st.lists(st.sampled_from([b"\x1b[31m", b"\x1b[0m", b"\x1b[", b"\x1b", b"m", b"\n", b"a", b"0;"])))
def test_closing_colours_changes_nothing_but_the_ends_of_lines_that_leave_one_open(pieces: list[bytes]) -> None:
    lines = b"".join(pieces) + b"\n"

    def closed(line: bytes) -> bytes:
        codes = re.findall(rb"\x1b\[([0-9;]*)m", line)
        return line + b"\x1b[0m" if codes and codes[-1].strip(b"0;") else line

    assert close_colours(lines) == b"\n".join(map(closed, lines.split(b"\n")))
