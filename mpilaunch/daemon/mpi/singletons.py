"""MPI programs that have not found each other: each takes itself for a world of one, and nobody would notice.

A library that is built for another launcher, or that finds nothing of what it needs, starts as a singleton, without a word. So
the ranks that have not come some time after their start are looked at: is an MPI library mapped there? The head warns once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mpilaunch.daemon.node.elf import ElfError, read_elf
from mpilaunch.daemon.ranks import reaper

if TYPE_CHECKING:
    from collections.abc import Callable

LOOKS = (2.0, 6.0, 14.0, 30.0, 62.0)
"""Seconds after the start of the ranks at which they are looked at: a script may load its MPI late."""
MOST_RANKS = 16
"""Ranks that are looked at; the others of a node will be like them."""

OPEN_MPI, MPICH = "Open MPI", "MPICH"
"""The families of MPI libraries, by what they ask of a launcher: PMIx, and PMI."""

_LIBRARY = re.compile(rb"(?:^|/)(libmpi(?:ch|_abi)?\.so[.0-9]*)$")
_OF_OPEN_MPI = (b"/libopen-pal", b"/libopen-rte")


class SingletonWatch:
    """The ranks of one world on this node.

    Args:
        pids: the process of each rank, by its number in the job.
        program: path of the program that they run.
        set_timer: (name, seconds, action) of the loop.
        came: says whether a rank has come to PMI or PMIx.
        tell: is called once with (rank, library, family).
    """

    def __init__(
        self,
        name: str,
        pids: dict[int, int],
        program: bytes,
        set_timer: Callable[[str, float, Callable[[], None]], None],
        came: Callable[[int], bool],
        tell: Callable[[int, str, str], None],
    ) -> None:
        self._pids = dict(sorted(pids.items())[:MOST_RANKS])
        self._set_timer, self._came, self._tell = set_timer, came, tell
        self._name = "singletons " + name
        self._found = linked_library(program)
        self._looks = list(LOOKS)
        self._told = False
        self._next_look(0.0)

    def ended(self, rank: int) -> None:
        """A rank has ended, and never came."""
        if self._pids.pop(rank, None) is not None and self._found is not None:
            self._tell_once(rank)

    def _next_look(self, before: float) -> None:
        if self._looks and not self._told:
            at = self._looks.pop(0)
            self._set_timer(self._name, at - before, lambda: self._look(at))

    def _look(self, at: float) -> None:
        waiting = {rank: pid for rank, pid in self._pids.items() if not self._came(rank)}
        for rank, pid in waiting.items():
            library = mapped_library([pid, *reaper.descendants_of(pid)])
            if library is not None:
                self._found = library
                self._tell_once(rank)
                return
        if waiting:
            self._next_look(at)

    def _tell_once(self, rank: int) -> None:
        if not self._told and self._found is not None:
            self._told = True
            self._tell(rank, *self._found)


def mapped_library(pids: list[int]) -> tuple[str, str] | None:
    """Return the MPI library that one of these processes has mapped, as (file name, family); None when there is none."""
    for pid in pids:
        try:
            with open("/proc/%d/maps" % pid, "rb") as file:
                maps = file.read()
        except OSError:
            continue  # it has just gone
        paths = {line.partition(b"/")[2] for line in maps.splitlines() if b".so" in line}
        for path in sorted(paths):
            match = _LIBRARY.search(path)
            if match is not None:
                family = OPEN_MPI if any(name in maps for name in _OF_OPEN_MPI) else MPICH
                return match[1].decode("ascii"), family
    return None


def linked_library(program: bytes) -> tuple[str, str] | None:
    """Return the MPI library that a program is linked with, as (name, family); None for none, and for a script."""
    try:
        needed = read_elf(program).needed
    except ElfError:
        return None
    for name in needed:
        if _LIBRARY.search(name) is not None:
            # MPICH and those that share its ABI are at 12 since 2013, Open MPI beyond that since 2016.
            number = int((re.findall(rb"[0-9]+", name) or [b"0"])[0])
            family = OPEN_MPI if name.startswith(b"libmpi.so") and number > 12 else MPICH
            return name.decode("ascii"), family
    return None
