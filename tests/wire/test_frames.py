"""Frames of the wire: whole, byte by byte, with trailing data, and those that break a rule."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.wire import frames
from mpilaunch.wire.frames import CONTROL, CREDIT, DATA, END, KINDS, PING, PONG, FrameReader, WireError, frame
from tests.support.paths import DOCS

FRAMES = [
    (CONTROL, 0, b'{"type":"launch"}'),
    (DATA, 6, b"hello\n"),
    (DATA, 6, bytes(range(256)) * 1024),
    (END, 6, b""),
    (CREDIT, 6, b"\0\0\1\0"),
    (PING, 0, bytes(8)),
    (PONG, 0, bytes(16)),
]


@pytest.mark.parametrize(("kind", "channel", "payload"), FRAMES, ids=[KINDS[item[0]] for item in FRAMES])
def test_a_frame_arrives_whole_byte_by_byte_and_with_more_behind_it(kind: int, channel: int, payload: bytes) -> None:
    data = frame(kind, channel, payload)
    assert FrameReader().feed(data) == [(kind, channel, payload)]
    reader = FrameReader()
    step = max(1, len(data) // 50)
    pieces = [reader.feed(data[start : start + step]) for start in range(0, len(data), step)]
    assert [item for piece in pieces for item in piece] == [(kind, channel, payload)]
    reader = FrameReader()
    assert reader.feed(data + frame(END, 9) + b"ML") == [(kind, channel, payload), (END, 9, b"")]
    assert reader.feed(frame(END, 10)[2:]) == [(END, 10, b"")]


@given(st.lists(st.sampled_from(FRAMES), max_size=6), st.data())
def test_frames_do_not_depend_on_how_they_are_cut(items: list[tuple[int, int, bytes]], data: st.DataObject) -> None:
    stream = b"".join(frame(*item) for item in items)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = FrameReader()
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [item for piece in pieces for item in reader.feed(piece)] == items


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"SSH-2.0-OpenSSH", "frame begins with 0x5353 instead of 0x4d4c"),
        (frame(9, 0), "unknown kind of frame 9"),
        (frame(DATA, 1), "DATA of 0 bytes, allowed are 1 to 262144"),
        (frame(DATA, 1, bytes(262145)), "DATA of 262145 bytes"),
        (frame(END, 1, b"x"), "END of 1 bytes"),
        (frame(PING, 0, b"1234567"), "PING of 7 bytes"),
        (frames.HEADER.pack(frames.MAGIC, CONTROL, 0, 0xFFFFFFFF), "CONTROL of 4294967295 bytes, allowed are 2 to 1000"),
    ],
)
def test_a_frame_that_breaks_a_rule_says_how(data: bytes, words: str) -> None:
    with pytest.raises(WireError, match=re.escape(words)):
        FrameReader(max_control=1000).feed(data)


def test_the_page_and_the_code_name_the_same_kinds() -> None:
    page = (DOCS / "wire.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| ([A-Z]+) \|", page, re.MULTILINE)
    assert {int(number): name for number, name in rows} == KINDS
    assert f"{frames.MAX_DATA:,}" in page
    assert json.dumps(frames.MARKER.decode())[1:-1].replace("\\u0000", "\\0") in page
