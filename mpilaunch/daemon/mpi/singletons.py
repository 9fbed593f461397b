"""Detection of singletons: MPI programs whose ranks did not connect, so that each runs as a world of one.

A library that is built for another launcher, or does not find its launcher, silently starts as a singleton. So ranks that have
not connected some time after their start are checked for what MPI_Init maps and opens: a program may load MPI without ever
calling MPI_Init. The head warns once.
"""

from __future__ import annotations

import itertools
import os
import re

from mpilaunch.daemon.mpi.segments import FOLDER, NAMES
from mpilaunch.daemon.node.elf import ElfError, read_elf
from mpilaunch.daemon.ranks import reaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

EARLY_CHECKS = (0.1, 0.3, 1.0)
CHECKS = (2.0, 8.0, 16.0, 32.0, 64.0)
"""Seconds after the start of the ranks at which they are checked: first those linked with MPI, as a script may load it late."""
PATIENCE = 5.0
"""Seconds from the first trace of MPI_Init after which a running rank that could connect must have connected."""
MOST_RANKS = 16
"""Ranks of a node that are checked; the others will be like them."""
MOST_DESCRIPTORS = 1024
"""Descriptors of a process that are checked; those of MPI_Init are among the first."""

OPEN_MPI, MPICH = "Open MPI", "MPICH"
"""Families of MPI libraries, which need PMIx and PMI."""

_LIBRARY = re.compile(rb"(?:^|/)(libmpi(?:ch|_abi)?\.so[.0-9]*)$")
_OF_OPEN_MPI = (b"/libopen-pal", b"/libopen-rte")
_MEMORY = (*NAMES, b"open_mpi.")
_COMPONENT = re.compile(rb"/(?:mca_\w+|lib[\w.]+-fi)\.so[.0-9]*$")
"""Shared memory, and libraries that MPI_Init loads: Open MPI's components and libfabric's providers."""


class SingletonWatch:
    """The ranks of one world on this node that run one program.

    Args:
        pids: the process of each rank, by its number in the job.
        has_connected: returns whether a rank has connected to PMI or PMIx.
        lacks: returns whether the ranks of a family cannot connect here.
        report: called once with (rank, library, family).
    """

    def __init__(
        self,
        name: str,
        pids: dict[int, int],
        program: bytes,
        set_timer: Callable[[str, float, Callable[[], None]], None],
        has_connected: Callable[[int], bool],
        lacks: Callable[[str], bool],
        report: Callable[[int, str, str], None],
    ) -> None:
        self._pids = dict(sorted(pids.items())[:MOST_RANKS])
        self._set_timer, self._has_connected, self._lacks, self._report = set_timer, has_connected, lacks, report
        self._name = "singletons " + name
        self._library = linked_library(program)
        self._checks = [*(EARLY_CHECKS if self._library else ()), *CHECKS]
        self._traces: dict[int, float] = {}
        self._reported = False
        self._schedule(0.0)

    def ended(self, rank: int) -> None:
        """Handle the exit of a rank that never connected; one that left no trace may have been too quick."""
        if self._pids.pop(rank, None) is not None and self._library is not None:
            if rank in self._traces or self._lacks(self._library[1]):
                self._report_once(rank)

    def _schedule(self, before: float) -> None:
        if self._checks and not self._reported:
            at = self._checks.pop(0)
            self._set_timer(self._name, at - before, lambda: self._check(at))

    def _check(self, at: float) -> None:
        waiting = {rank: pid for rank, pid in self._pids.items() if not self._has_connected(rank)}
        for rank, pid in waiting.items():
            library = initialized_library([pid, *reaper.descendants(pid)])
            if library is not None:
                self._library = self._library or library
                since = self._traces.setdefault(rank, at)
                if at - since >= PATIENCE or self._lacks(self._library[1]):
                    self._report_once(rank)
                    return
        if waiting:
            self._schedule(at)

    def _report_once(self, rank: int) -> None:
        if not self._reported and self._library is not None:
            self._reported = True
            self._report(rank, *self._library)


def initialized_library(pids: list[int]) -> tuple[str, str] | None:
    """Return the MPI library whose MPI_Init has left traces in one of these processes, as (file name, family), or None."""
    for pid in pids:
        maps = reaper.process_file(pid, "maps")
        paths = sorted({b"/" + line.partition(b"/")[2] for line in maps.splitlines() if b"/" in line})
        match = next(filter(None, map(_LIBRARY.search, paths)), None)
        if match is not None and any(map(_is_trace, [*paths, *_open_files(pid)])):
            family = OPEN_MPI if any(name in maps for name in _OF_OPEN_MPI) else MPICH
            return match[1].decode("ascii"), family
    return None


def _is_trace(path: bytes) -> bool:
    return (path.startswith(FOLDER) and path.startswith(_MEMORY, len(FOLDER))) or _COMPONENT.search(path) is not None


def _open_files(pid: int) -> list[bytes]:
    """Return what the first descriptors of a process are, fewer if it closes one meanwhile."""
    paths = []
    try:
        with os.scandir(b"/proc/%d/fd" % pid) as entries:
            for entry in itertools.islice(entries, MOST_DESCRIPTORS):
                paths.append(os.readlink(entry.path))
    except OSError:
        pass
    return paths


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
