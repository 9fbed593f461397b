"""Whole lines out of blocks, tags before them, and progress bars as a terminal would show them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.job.output.lines import LineJoiner, as_shown, tag_lines


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
    prefix = prefix.replace(b"\n", b"")
    if lines:
        text = b"".join(line + b"\n" for line in lines)
        assert tag_lines(text, prefix) == b"".join(prefix + line + b"\n" for line in lines)


def test_of_a_progress_bar_the_last_drawing_is_shown() -> None:
    assert as_shown(b"\r10%\r20%\r100%\nnext\r\nplain\n") == b"100%\nnext\nplain\n"
    assert as_shown(b"no return\n") == b"no return\n"
