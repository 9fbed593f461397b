"""The wire: frames and sessions, whole, byte by byte, with trailing data, and with bytes from an enemy."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.wire import frames
from mpilaunch.wire.frames import CONTROL, CREDIT, DATA, END, KINDS, PING, PONG, FrameReader, WireError, frame
from mpilaunch.wire.session import Session, encode_shared
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


def test_a_session_that_broke_stays_broken() -> None:
    session = Session()
    for _ in range(2):
        with pytest.raises(WireError, match="0x5353"):
            session.receive_data(b"SSH-2.0-OpenSSH", 0.0)


@given(st.binary(max_size=400))
def test_bytes_from_an_enemy_are_frames_or_a_wire_error(data: bytes) -> None:
    session = Session(max_control=100)
    try:
        session.receive_data(data, 0.0)
    except WireError:
        return
    # What is kept is a frame that is not whole: never more than its header says, which is bounded.
    assert len(session._reader._buffer) <= max(frames.MAX_DATA, 100) + frames.HEADER.size


@given(st.sampled_from([CONTROL, DATA, END, CREDIT, PING, PONG]), st.integers(0, 20), st.binary(max_size=64))
def test_well_formed_frames_with_any_payload_are_events_or_a_wire_error(kind: int, channel: int, payload: bytes) -> None:
    session = Session()
    session.open_receiving(5, 32)
    session.open_sending(6, 32)
    try:
        session.receive_data(frame(kind, channel, payload), 0.0)
    except WireError as error:
        assert str(error)


class Pair:
    """Two sessions that talk with each other."""

    def __init__(self) -> None:
        self.head, self.daemon = Session(), Session()

    def to_head(self, clock: float = 0.0) -> list[tuple[int, int, object]]:
        return self.head.receive_data(self.daemon.data_to_send(), clock)

    def to_daemon(self, clock: float = 0.0) -> list[tuple[int, int, object]]:
        return self.daemon.receive_data(self.head.data_to_send(), clock)


def test_data_uses_up_credit_and_grants_renew_it() -> None:
    pair = Pair()
    pair.daemon.open_sending(5, 10)
    pair.head.open_receiving(5, 10)
    pair.daemon.send_data(5, b"1234567")
    assert pair.daemon.credit(5) == 3
    assert pair.to_head() == [(DATA, 5, b"1234567")]
    with pytest.raises(ValueError, match="4 bytes on channel 5 with a credit of 3"):
        pair.daemon.send_data(5, b"8901")
    pair.head.grant(5, 7)
    assert pair.to_daemon() == [(CREDIT, 5, None)]
    assert pair.daemon.credit(5) == 10


def test_data_beyond_the_credit_ends_the_wire() -> None:
    session = Session()
    session.open_receiving(5, 3)
    with pytest.raises(WireError, match="DATA of 4 bytes on channel 5 with a credit of 3"):
        session.receive_data(frame(DATA, 5, b"1234"), 0.0)
    with pytest.raises(WireError, match="DATA of 1 bytes on channel 6 with a credit of None"):
        Session().receive_data(frame(DATA, 6, b"1"), 0.0)


def test_a_stream_ends_once_and_late_grants_do_no_harm() -> None:
    pair = Pair()
    pair.daemon.open_sending(5, 10)
    pair.head.open_receiving(5, 10)
    pair.head.grant(5, 1)
    pair.daemon.send_end(5)
    pair.daemon.send_end(5)
    assert pair.to_head() == [(END, 5, None)]
    assert pair.to_daemon() == [(CREDIT, 5, None)]
    assert pair.daemon.credit(5) == 0
    pair.head.grant(5, 1)
    assert pair.head.data_to_send() == b""
    with pytest.raises(WireError, match="END of channel 5, which is not open"):
        pair.head.receive_data(frame(END, 5), 0.0)


def test_a_ping_is_answered_with_both_clocks() -> None:
    pair = Pair()
    pair.head.send_ping(100.0)
    assert pair.to_daemon(clock=7.5) == []
    assert pair.to_head(clock=100.2) == [(PONG, 0, (100.0, 7.5))]


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.none() | st.lists(st.text())))
def test_control_messages_keep_every_text(members: dict[str, object]) -> None:
    message = {**members, "type": "prepare"}
    pair = Pair()
    pair.head.send(message)
    assert pair.to_daemon() == [(CONTROL, 0, message)]


@given(st.dictionaries(st.text(), st.text() | st.integers()), st.dictionaries(st.text(), st.text(), min_size=1))
def test_members_that_were_encoded_once_are_members_like_others(own: dict[str, object], shared: dict[str, object]) -> None:
    message = {**shared, **own, "type": "prepare"}
    pair = Pair()
    pair.head.send({**own, "type": "prepare"}, encode_shared(shared))
    pair.head.send({"type": "launch"})
    assert pair.to_daemon() == [(CONTROL, 0, message), (CONTROL, 0, {"type": "launch"})]


def test_control_messages_keep_bytes_that_are_not_utf_8() -> None:
    pair = Pair()
    pair.head.send({"type": "prepare", "value": b"\xff\xfe=\n\"'".decode("utf-8", "surrogateescape")})
    ((_, _, message),) = pair.to_daemon()
    assert isinstance(message, dict)
    assert message["value"].encode("utf-8", "surrogateescape") == b"\xff\xfe=\n\"'"


@pytest.mark.parametrize("payload", [b"[]", b"{}", b'{"type":1}', b"nope", b"\xff\xff", b"[" * 5000, b'{"type":"x"'])
def test_control_messages_that_are_none_end_the_wire(payload: bytes) -> None:
    with pytest.raises(WireError, match="control message"):
        Session().receive_data(frame(CONTROL, 0, payload), 0.0)


def test_the_page_and_the_code_name_the_same_kinds() -> None:
    page = (DOCS / "wire.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| ([A-Z]+) \|", page, re.MULTILINE)
    assert {int(number): name for number, name in rows} == KINDS
    assert f"{frames.MAX_DATA:,}" in page
    assert json.dumps(frames.MARKER.decode())[1:-1].replace("\\u0000", "\\0") in page
