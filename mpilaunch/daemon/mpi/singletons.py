"""Detection of singletons: MPI programs whose ranks did not connect, so that each runs as a world of one.

A library that is built for another launcher, or does not find its launcher, silently starts as a singleton. So ranks that have
not connected some time after their start are checked for a mapped MPI library. The head warns once.
"""

from __future__ import annotations

import re

from mpilaunch.daemon.node.elf import ElfError, read_elf
from mpilaunch.daemon.ranks import reaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CHECKS = (2.0, 6.0, 14.0, 30.0, 62.0)
"""Seconds after the start of the ranks at which they are checked: a script may load MPI late."""
MOST_RANKS = 16
"""Ranks of a node that are checked; the others will be like them."""

OPEN_MPI, MPICH = "Open MPI", "MPICH"
"""Families of MPI libraries, which need PMIx and PMI."""

_LIBRARY = re.compile(rb"(?:^|/)(libmpi(?:ch|_abi)?\.so[.0-9]*)$")
_OF_OPEN_MPI = (b"/libopen-pal", b"/libopen-rte")


class SingletonWatch:
    """The ranks of one world on this node that run one program.

    Args:
        pids: the process of each rank, by its number in the job.
        has_connected: returns whether a rank has connected to PMI or PMIx.
        report: called once with (rank, library, family).
    """

    def __init__(
        self,
        name: str,
        pids: dict[int, int],
        program: bytes,
        set_timer: Callable[[str, float, Callable[[], None]], None],
        has_connected: Callable[[int], bool],
        report: Callable[[int, str, str], None],
    ) -> None:
        self._pids = dict(sorted(pids.items())[:MOST_RANKS])
        self._set_timer, self._has_connected, self._report = set_timer, has_connected, report
        self._name = "singletons " + name
        self._library = linked_library(program)
        self._checks = list(CHECKS)
        self._reported = False
        self._schedule(0.0)

    def ended(self, rank: int) -> None:
        """Handle the end of a rank that never connected."""
        if self._pids.pop(rank, None) is not None:
            self._report_once(rank)

    def _schedule(self, before: float) -> None:
        if self._checks and not self._reported:
            at = self._checks.pop(0)
            self._set_timer(self._name, at - before, lambda: self._check(at))

    def _check(self, at: float) -> None:
        waiting = {rank: pid for rank, pid in self._pids.items() if not self._has_connected(rank)}
        for rank, pid in waiting.items():
            library = mapped_library([pid, *reaper.descendants(pid)])
            if library is not None:
                self._library = library
                self._report_once(rank)
                return
        if waiting:
            self._schedule(at)

    def _report_once(self, rank: int) -> None:
        if not self._reported and self._library is not None:
            self._reported = True
            self._report(rank, *self._library)


def mapped_library(pids: list[int]) -> tuple[str, str] | None:
    """Return the MPI library that one of these processes has mapped, as (file name, family), or None."""
    for pid in pids:
        maps = reaper.process_file(pid, "maps")
        paths = {line.partition(b"/")[2] for line in maps.splitlines() if b".so" in line}
        for path in sorted(paths):
            match = _LIBRARY.search(path)
            if match is not None:
                family = OPEN_MPI if any(name in maps for name in _OF_OPEN_MPI) else MPICH
                return match[1].decode("ascii"), family
    return None


def linked_library(program: bytes) -> tuple[str, str] | None:
    """Return the MPI library that a program is linked with, as (name, family), or None."""
    try:
        needed = read_elf(program).needed
    except ElfError:
        return None
    for name in needed:
        if _LIBRARY.search(name) is not None:
            # MPICH and its ABI family have had number 12 since 2013, Open MPI higher ones since 2016.
            number = int((re.findall(rb"[0-9]+", name) or [b"0"])[0])
            family = OPEN_MPI if name.startswith(b"libmpi.so") and number > 12 else MPICH
            return name.decode("ascii"), family
    return None
