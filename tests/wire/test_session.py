"""Sessions of the wire: credit, ends, pings, control messages, and bytes from an enemy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.wire import frames
from mpilaunch.wire.frames import CONTROL, CREDIT, DATA, END, PING, PONG, WireError, frame
from mpilaunch.wire.session import Session, encode_shared


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
