"""Schemas of control messages, and when a message is accepted. tests/head/test_hostile.py holds the tables to the handlers."""

from __future__ import annotations

from typing import Any

import pytest

from mpilaunch.wire import messages
from mpilaunch.wire.frames import WireError
from mpilaunch.wire.messages import HEAD_SENDS, accepts, check

STOP = {"type": "stop", "steps": [[15, 2.0], [9, 0]]}
TABLE: dict[str, tuple[str, Any]] = {
    "a": ("x y", messages.having(n=messages.whole)),
    "b": ("y", messages.exactly(n=messages.whole)),
}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (messages.whole, [0, (1 << 63) - 1], [-1, 1 << 63, 1.0, True, "1", None]),
        (messages.code, [-1, 255], [1 << 31, 0.0]),
        (messages.place, [-1, 0], [-2]),
        (messages.signal, [1, 64], [0, 65]),
        (messages.seconds, [0, 1.5, 1e15], [-0.1, 2e15, float("nan"), True]),
        (messages.without_nul, ["", "a"], ["a\0", b"a", None]),
        (messages.secret, ["0" * 64, "ab" * 40], ["0" * 62, "0" * 65, "g" * 64]),
        (messages.maybe(messages.flag), [None, True], [1]),
        (messages.listed(messages.text), [[], ["a"]], [("a",), ["a", 1], "a"]),
        (messages.row(messages.text, messages.whole), [["a", 1]], [["a"], ["a", 1, 2], [1, "a"]]),
        (messages.named(messages.text), [{}, {"k": "v"}], [{"k": 1}, []]),
    ],
)
def test_schemas(kind: Any, good: list[Any], bad: list[Any]) -> None:
    assert all(map(kind, good)) and not any(map(kind, bad))


def test_a_known_message_has_its_members_and_perhaps_more() -> None:
    check({"type": "a", "n": 1, "newer": 2}, TABLE)
    check({"type": "unknown"}, TABLE)
    for wrong in ({"type": "a"}, {"type": "a", "n": -1}, {"type": "b", "n": 1, "newer": 2}):
        with pytest.raises(WireError, match="does not fit"):
            check(wrong, TABLE)


def test_a_message_counts_in_its_states_only() -> None:
    assert accepts("x", {"type": "a", "n": 1}, TABLE) and not accepts("z", {"type": "a", "n": 1}, TABLE)
    assert not accepts("x", {"type": "unknown"}, TABLE, strict=True)
    with pytest.raises(WireError, match="'b' of a node that is x"):
        accepts("x", {"type": "b", "n": 1}, TABLE, strict=True)


@pytest.mark.parametrize("state", ["fresh", "prepared", "running", "finished"])
def test_a_stop_crosses_with_the_end(state: str) -> None:
    assert accepts(state, STOP, HEAD_SENDS) == (state in ("prepared", "running"))
