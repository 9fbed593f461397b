"""Stacks of ranks that end: those that were read, and those that ranks write to stderr since they were asked to. Equal ones are
printed once. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mpilaunch.head.output.folded import Folded, folded
from mpilaunch.job.hangs.stacks import DUMP
from mpilaunch.wire.frames import STDERR

MOST_COLLECTED = 32 << 20
"""Bytes of all dumps together; what is beyond them is printed as it comes."""
_ADDRESS = re.compile(rb"0x[0-9a-f]{8,16}\b")
"""A thread's identifier, which differs in each process."""


class Dumps:
    """The dumps of one job.

    Args:
        known: rank -> its stacks, of ranks that are not asked.
    """

    def __init__(self, known: Mapping[int, str]) -> None:
        self._known = known
        self._texts: dict[int, bytearray] = {}
        self._left = MOST_COLLECTED

    def take(self, rank: int, lines: bytes) -> bytes:
        """Take what a rank writes to stderr, whole lines; return what is to be printed now: what comes before its dump."""
        begin = 0 if rank in self._texts else lines.find(DUMP)
        if begin < 0 or len(lines) - begin > self._left:
            return lines
        self._left -= len(lines) - begin
        self._texts.setdefault(rank, bytearray()).extend(lines[begin:])
        return lines[:begin]

    def of(self, rank: int) -> bytes:
        """Return what was taken from a rank."""
        return bytes(self._texts.get(rank, b""))

    def folded(self, names: Mapping[int, str], *, tagged: bool) -> Iterator[Folded]:
        """Yield the dumps, equal ones once; the arguments are those of `folded`."""
        texts = {(STDERR, rank): _ADDRESS.sub(b"0x...", bytes(text)) for rank, text in self._texts.items()}
        known = {(STDERR, rank): text.encode("utf-8", "replace") for rank, text in self._known.items()}
        yield from folded({**known, **texts}, names, "lines", tagged=tagged)
