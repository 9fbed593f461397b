"""What a rank's stdout is: the lines that a program has printed when it ends, under our launcher and under the real ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.launching import MPILAUNCH, environment, launch, script
from tests.support.paths import PROGRAMS

REAL = {"openmpi": ["mpirun.openmpi", "--oversubscribe"], "mpich": ["mpiexec.hydra"]}
DIALECTS = {"openmpi": "openmpi", "mpich": "hydra"}
ENDS = ("abort", "killed", "crash", "exit", "finalize")
PRINTED = sorted(f"rank {rank} {what}" for rank in (0, 1) for what in ("begins", "works"))
AS_ROOT = {b"OMPI_ALLOW_RUN_AS_ROOT": b"1", b"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": b"1"}
WHAT = ("python3", "-c", "import os; print([os.isatty(number) for number in (0, 1, 2)])")
CONTROLLING = """
import os
assert os.isatty(1)
try:
    os.open("/dev/tty", os.O_RDWR)
except OSError as error:
    print(error.strerror)
"""
LOST = (
    "hint: nothing has come of what it printed: a C or Fortran program on a pipe loses what it has not flushed when it dies so"
)


@pytest.fixture(scope="session")
def prints(openmpi: str, mpich: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the directory of the programs by language and family: c.openmpi, f90.mpich."""
    place = tmp_path_factory.mktemp("prints")
    for family in REAL:
        for language, compiler in (("c", "mpicc"), ("f90", "mpif90")):
            argv = [f"{compiler}.{family}", "-o", f"{place}/{language}.{family}", f"{PROGRAMS}/prints.{language}"]
            subprocess.run(argv, check=True, capture_output=True, cwd=place)
    return place


def printed(text: str) -> list[str]:
    """Return the lines of the program, sorted, without those of a launcher or of Fortran's library."""
    return sorted(line for line in text.splitlines() if line in PRINTED)


@pytest.mark.slow
@pytest.mark.parametrize(("language", "end"), [*(("c", end) for end in ENDS), *(("f90", end) for end in ENDS if end != "exit")])
@pytest.mark.parametrize("family", sorted(REAL))
def test_the_lines_that_come_are_those_of_the_real_launcher(prints: Path, family: str, language: str, end: str) -> None:
    program = prints / f"{language}.{family}"
    argv = [*REAL[family], "-n", "2", str(program), end]
    ours = printed(launch("--dialect", DIALECTS[family], "-n", "2", program, end).out.decode())
    theirs: list[list[str]] = []
    while ours not in theirs and len(theirs) < 5:  # Hydra may kill a rank before it has written what MPI_Abort makes it write
        real = subprocess.run(argv, capture_output=True, text=True, env={**environment(), **AS_ROOT}, timeout=60)
        theirs.append(printed(real.stdout))
    assert ours in theirs
    either = launch("--dialect", "mpi", "-n", "2", program, end)
    assert printed(either.out.decode()) == ours, "a line that may be of each launcher goes by the library"


@pytest.mark.parametrize(("words", "lines"), [((), []), (("--stdout", "pty"), PRINTED), (("--stdout", "line"), PRINTED)])
def test_a_program_that_crashes_has_its_lines_if_one_asks(prints: Path, words: tuple[str, ...], lines: list[str]) -> None:
    done = launch(*words, "-np", "2", prints / "c.openmpi", "crash")
    assert (done.code, sorted(done.lines)) == (139, lines)
    assert (LOST in done.words) == (not words), done.words


def test_a_program_whose_name_begins_like_that_of_a_shell_gets_the_hint_too(prints: Path, tmp_path: Path) -> None:
    (tmp_path / "shallow").symlink_to(prints / "c.openmpi")
    assert LOST in launch("-np", "2", tmp_path / "shallow", "crash").words


def test_a_program_that_has_printed_and_one_that_is_a_script_get_no_hint(tmp_path: Path) -> None:
    for text in ("echo up; kill -SEGV $$", "kill -SEGV $$"):
        done = launch("-np", "1", script(tmp_path / "dies.sh", f"#!/bin/sh\n{text}\n"))
        assert done.code == 139 and LOST not in done.words


@pytest.mark.parametrize(
    ("words", "terminals"),
    [
        ((), "[False, False, False]"),
        (("--stdout", "pty"), "[False, True, False]"),
        (("--stdout", "pty", "--merge-stderr-to-stdout"), "[False, True, True]"),
        (("--stdout", "line"), "[False, False, False]"),
        (("--dialect", "openmpi"), "[False, True, False]"),
        (("--dialect", "openmpi", "--stdout", "pipe"), "[False, False, False]"),
        (("--dialect", "hydra"), "[False, False, False]"),
        (("--dialect", "mpi"), "[False, False, False]"),
    ],
    ids=["native", "pty", "merged", "line", "openmpi", "openmpi-pipe", "hydra", "any-mpi"],
)
def test_what_is_a_terminal(words: tuple[str, ...], terminals: str) -> None:
    done = launch(*words, "-np", "2", *WHAT)
    assert (done.code, done.lines, done.err) == (0, [terminals] * 2, b"")


def test_a_terminal_changes_no_byte_and_ends_with_its_last_writer(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4000 + b"\r\n\n\r\x04\x03"
    (tmp_path / "data").write_bytes(data)
    done = launch("--stdout", "pty", "-np", "1", "sh", "-c", "cat data; (sleep 0.3; printf end) & exit 0", cwd=tmp_path)
    assert (done.code, done.out) == (0, data + b"end")


def test_a_terminal_is_nobodys_controlling_terminal(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(CONTROLLING)
    done = launch("--stdout", "pty", "-np", "1", program)
    assert (done.code, done.lines) == (0, ["No such device or address"])


def test_a_reader_that_is_slow_holds_a_rank_at_its_terminal(tmp_path: Path) -> None:
    program = "for line in range(20_000): print(line, '0' * 900)\nopen('done', 'w')"
    reader, writer = os.pipe()
    job = subprocess.Popen(
        [*MPILAUNCH, "--stdout", "pty", "-np", "1", sys.executable, "-c", program],
        stdout=writer, env=environment(), cwd=tmp_path,
    )  # fmt: skip
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        time.sleep(0.5)
        assert not (tmp_path / "done").exists()
        assert sum(1 for _ in file) == 20_000
    assert job.wait(30) == 0


def test_where_there_is_no_terminal_a_note_says_so_and_a_pipe_does(tmp_path: Path) -> None:
    hidden = 'mount -t tmpfs tmpfs /dev/pts && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hidden, "sh", *MPILAUNCH, "--stdout", "pty", "-np", "1", *WHAT],
        capture_output=True, text=True, env=environment(), timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[False, False, False]\n")
    assert "no pseudo-terminal here, so stdout is a pipe: " in done.stderr


def test_stdbuf_must_be_there_where_lines_are_asked_for(tmp_path: Path) -> None:
    done = launch("--stdout", "line", "-x", f"PATH={tmp_path}", "-np", "1", "/bin/echo", "up")
    assert done.code == 1 and "error[start-program-missing]" in done.words and "stdbuf: not found in PATH" in done.words
