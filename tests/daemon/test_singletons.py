"""Singletons: a rank is reported for what MPI_Init leaves in its process, not for the library alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpilaunch.daemon.mpi.singletons import CHECKS, EARLY_CHECKS, MPICH, OPEN_MPI, SingletonWatch
from tests.support.mpi.programs import compile_programs

RANK = """
import mmap, os, sys
library = open(sys.argv[1])
mapped = mmap.mmap(library.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
for command in sys.stdin:
    if command == "open\\n":
        memory = open(sys.argv[2], "w+")
        os.unlink(sys.argv[2])
    else:
        memory.close()
    print("done", flush=True)
"""


class Rank:
    """A process that has mapped an MPI library, and opens the shared memory of MPI_Init when asked to; and the watch of it."""

    def __init__(self, library: Path, lacks: bool = False, program: bytes = b"") -> None:
        library.write_bytes(b"library")
        command = [sys.executable, "-c", RANK, str(library), f"/dev/shm/open_mpi.{library.parent.name}"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()
        self.connected = False
        self.reports: list[tuple[int, str, str]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.watch = SingletonWatch(
            "test",
            {3: self.process.pid},
            program or sys.executable.encode(),
            lambda name, seconds, action: self.timers.append((seconds, action)),
            lambda rank: self.connected,
            lambda family: lacks,
            lambda *report: self.reports.append(report),
        )

    def _read(self) -> None:
        assert self.process.stdout is not None and self.process.stdout.readline()

    def do(self, command: str) -> None:
        """Have the process open or close the memory."""
        assert self.process.stdin is not None
        print(command, file=self.process.stdin, flush=True)
        self._read()

    def check(self, times: int = 1) -> None:
        """Let the time of the next checks come."""
        for _ in range(times):
            self.timers.pop()[1]()

    def close(self) -> None:
        """End the process."""
        self.process.communicate("")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Rank]]:
    """Give a function that starts a rank."""
    ranks = []

    def begin(library: str = "libmpi.so.40", **more: object) -> Rank:
        ranks.append(Rank(tmp_path / library, **more))  # type: ignore[arg-type]
        return ranks[-1]

    yield begin
    for rank in ranks:
        rank.close()


def test_a_mapped_library_is_no_singleton(start: Callable[..., Rank]) -> None:
    for lacks in (False, True):
        rank = start(lacks=lacks)
        rank.check(len(CHECKS))
        assert rank.timers == []
        rank.watch.ended(3)
        assert rank.reports == []


def test_a_rank_on_its_way_has_time_to_connect(start: Callable[..., Rank]) -> None:
    rank = start()
    rank.do("open")
    rank.check()
    rank.connected = True
    rank.check()
    assert (rank.reports, rank.timers) == ([], [])


def test_a_rank_that_stays_alone_is_reported(start: Callable[..., Rank]) -> None:
    rank = start("libmpich.so.12")
    rank.check()
    rank.do("open")
    rank.check()
    assert rank.reports == []
    rank.check()
    assert (rank.reports, rank.timers) == ([(3, "libmpich.so.12", MPICH)], [])


def test_a_rank_that_cannot_connect_is_reported_at_once(start: Callable[..., Rank]) -> None:
    rank = start(lacks=True)
    rank.do("open")
    rank.check()
    rank.watch.ended(3)
    assert rank.reports == [(3, "libmpi.so.40", MPICH)]


def test_a_rank_that_ends_after_its_mpi_is_reported(start: Callable[..., Rank]) -> None:
    rank = start()
    rank.do("open")
    rank.check()
    rank.do("close")
    rank.watch.ended(3)
    rank.watch.ended(3)
    assert rank.reports == [(3, "libmpi.so.40", MPICH)]


@pytest.mark.parametrize("lacks", [False, True])
def test_a_linked_program_that_ends_before_the_first_check(
    start: Callable[..., Rank], tmp_path: Path, openmpi: str, lacks: bool
) -> None:
    program = compile_programs(openmpi, tmp_path) / "ring"
    rank = start(lacks=lacks, program=bytes(program))
    assert rank.timers[0][0] == EARLY_CHECKS[0]
    rank.watch.ended(3)
    assert rank.reports == ([(3, "libmpi.so.40", OPEN_MPI)] if lacks else [])
