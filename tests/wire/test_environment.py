"""The layers of a rank's environment, and the user's edits of it. tests/launch/test_environment.py has real ranks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.wire.environment import decode, edit, encode, rank_environment

OWN = {b"HOME": b"/root", b"SLURM_JOB_ID": b"1", b"RANK": b"9", b"PATH": b"/bin"}
PREPARE: dict[str, Any] = {
    "scrub": ["RANK", "SLURM_*"], "defaults": {"HOME": "/", "OMP_NUM_THREADS": "1"}, "environment": {"A": "job", "B": "job"},
    "apps": [{"environment": {"B": "program"}, "edits": [["prepend", "PATH", "/x", ":"], ["unset", "C", "", ""]]}],
    "ranks": [{"rank": 3, "app": 0, "environment": {"RANK": "3", "C": "rank"}, "unset": ["A"]}],
}  # fmt: skip


def test_each_layer_overrides_those_before_it() -> None:
    assert rank_environment(PREPARE, 3, OWN, {"PMIX_RANK": "3"}) == {
        b"HOME": b"/root",
        b"PATH": b"/x:/bin",
        b"OMP_NUM_THREADS": b"1",
        b"B": b"program",
        b"RANK": b"3",
        b"PMIX_RANK": b"3",
    }


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([["unset", "A", "", ""]], {b"AB": b"2", b"C": b"3"}),
        ([["unset", "A*", "", ""]], {b"C": b"3"}),
        ([["append", "C", "4", ","]], {b"A": b"1", b"AB": b"2", b"C": b"3,4"}),
        ([["prepend", "D", "4", ","]], {b"A": b"1", b"AB": b"2", b"C": b"3", b"D": b"4"}),
        ([["unset", "C", "", ""], ["append", "C", "4", ","]], {b"A": b"1", b"AB": b"2", b"C": b"4"}),
    ],
)
def test_edits(edits: list[list[str]], expected: dict[bytes, bytes]) -> None:
    environment = {b"A": b"1", b"AB": b"2", b"C": b"3"}
    edit(environment, edits)
    assert environment == expected


@given(st.binary())
def test_every_byte_survives_the_wire(data: bytes) -> None:
    assert encode(decode(data)) == data
