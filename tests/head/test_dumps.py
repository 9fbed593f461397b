"""Stacks of many ranks are told once for those that have the same."""

from __future__ import annotations

import pytest

from mpilaunch.head.output import dumps
from mpilaunch.head.output.dumps import Dumps

NAMES = {0: "node01", 1: "node01", 2: "node02"}


def dump(address: int, place: str) -> bytes:
    thread = f"Current thread 0x{address:016x} (most recent call first):"
    return f'Fatal Python error: Aborted\n\n{thread}\n  File "{place}"\n'.encode()


def shown(collected: Dumps) -> list[str]:
    return [f"{each.label}{each.text.decode().splitlines()[-1]}" for each in collected.folded(NAMES, tagged=True)]


def test_equal_stacks_are_reported_once_whatever_the_numbers_of_their_threads() -> None:
    collected = Dumps({})
    assert collected.take(0, b"loss 0.1\n" + dump(0x7F01, "a.py")) == b"loss 0.1\n"
    assert collected.take(2, dump(0x7F02, "a.py")) == b""
    assert collected.take(1, dump(0x7F03, "b.py")) == b""
    assert shown(collected) == ['[0,2]   File "a.py"', '[1]   File "b.py"']


def test_a_dump_may_come_in_pieces() -> None:
    collected = Dumps({})
    first, second, *rest = dump(0x7F01, "a.py").splitlines(keepends=True)
    assert [collected.take(1, part) for part in (b"before\n", first, second, b"".join(rest))] == [b"before\n", b"", b"", b""]
    (told,) = collected.folded(NAMES, tagged=True)
    assert told.text == b'Fatal Python error: Aborted\n\nCurrent thread 0x... (most recent call first):\n  File "a.py"\n'


def test_what_is_no_dump_is_printed() -> None:
    collected = Dumps({})
    assert collected.take(0, b"a\nb\n") == b"a\nb\n"
    assert shown(collected) == []


def test_no_more_than_so_much_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "MOST_COLLECTED", 200)
    collected = Dumps({})
    assert collected.take(0, dump(1, "a.py")) == b""
    assert collected.take(0, b"x" * 300) == b"x" * 300
    assert collected.take(1, dump(2, "a.py") * 2) == dump(2, "a.py") * 2
    assert shown(collected) == ['[0]   File "a.py"']
