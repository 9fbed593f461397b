"""Foreign text of the worst kind costs linear time: a rank or a node may choose it, and the head's loop waits meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mpilaunch.cli.dialects.shells import dshbak
from mpilaunch.head.nodes.link import LONGEST_NOTE
from mpilaunch.job.hints import ROWS, find_hint
from mpilaunch.job.output.lines import LineJoiner, as_shown, close_colours, tag_lines
from mpilaunch.job.output.masking import mask_message
from mpilaunch.job.state import RankEnd
from mpilaunch.text import printable
from tests.support.cpu_time import cpu_seconds

SMALL, LARGE = 32 << 10, 512 << 10
MOST = 4.0 * LARGE / SMALL
"""The ratio of times allowed: linear time has 16, quadratic time 256."""
TOO_SLOW = 2.0
"""Seconds of CPU time for the small input, after which the large one is not tried."""


def joined_bytewise(text: bytes) -> None:
    joiner = LineJoiner()
    for place in range(0, len(text), 16):
        joiner.feed(text[place : place + 1])


def hint(text: bytes) -> None:
    find_hint(RankEnd(0, code=1), [text])


OF_HINTS = {unit for row in ROWS for unit in (row.pattern.replace("\\", "").split("|")[0], row.pattern[:4] + row.then)}
WORST: dict[Callable[[bytes], object], set[str]] = {
    hint: {"x", ".so", "a.so: cannot ", "version `GLIBC_2", "1", "NCCL ", "fork ", " Resource", "`", *OF_HINTS},
    lambda text: tag_lines(text + b"\n", b"[0] "): {"\r", "x\r", "\n\r"},
    lambda text: as_shown(text + b"\n"): {"\r", "x\r", "\n\r"},
    lambda text: close_colours(text + b"\n"): {"\x1b", "\x1b[", "\x1b[1;", "\x1b[1m", "\x1b[0m", "0;", "\x1b[1m\x1bA"},
    joined_bytewise: {"x"},
    lambda text: printable(text.decode()): {"\x1b", "x"},
    lambda text: dshbak.compressed([text]): {"1", "a", "1a", "1a1"},
}


NOTES = {
    *("x", "'", "\"'", "' ", "a:", "a://", "a://b:c", "bearer ", "basic x", "-----BEGIN PRIVATE KEY-----", "eyJaaaaaaaaaaa."),
    *("x-", "a=", "a=a=", "'a':", "'a':'", "x'a':", "\\", "\\'", "cookie:", "curl -u ", "--password ", " ", "hf_", "AKIA"),
}


@pytest.mark.parametrize("function", WORST, ids=["hints", "tags", "bars", "colours", "join", "print", "dshbak"])
def test_the_worst_input_costs_linear_time(function: Callable[[bytes], object]) -> None:
    for unit in sorted(WORST[function]):
        text = (unit.encode() * LARGE)[:LARGE]
        small = min(cpu_seconds(function, text[:SMALL]) for _ in range(3))
        assert small < TOO_SLOW, repr(unit)
        assert cpu_seconds(function, text) < MOST * max(small, 0.001), repr(unit)


def test_masking_a_note_of_a_node_costs_little() -> None:
    """A note is cut before it is masked, so that some patterns may cost more than linear time."""
    for unit in sorted(NOTES):
        text = (unit.encode() * LONGEST_NOTE)[:LONGEST_NOTE]
        assert cpu_seconds(mask_message, text.decode()) < 0.05, repr(unit)
