"""Standard input of real launches: who gets it, every byte of it, and what becomes of the rest."""

from __future__ import annotations

import hashlib
import os
import pty
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.launching import MPILAUNCH, Launched, environment, finish, launch, launching, script, sh, wait_for_files

READ = "read line; echo $RANK:$line"
LARGE = random.Random(2).randbytes(3_000_000)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["0:hello", "1:", "2:"]),
        (["--stdin", "2"], ["0:", "1:", "2:hello"]),
        (["--stdin", "all"], ["0:hello", "1:hello", "2:hello"]),
        (["--stdin", "none"], ["0:", "1:", "2:"]),
    ],
)
def test_who_gets_it(words: list[str], expected: list[str]) -> None:
    done = launch("-np", "3", "-H", "local:2,local:1", *words, *sh(READ), stdin=b"hello\nmore\n")
    assert (done.code, done.lines, done.err) == (0, expected, b"")


def test_an_archive_is_read_by_the_ranks_and_stdin_by_what_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the archive\n")
    words = ("--hostfile", "/dev/stdin", "--stdin", "all", "--stdin-archive", tmp_path / "file", "tar", "-xO")
    done = launch(*words, stdin=b"local slots=2\n")
    assert (done.code, done.lines, done.err) == (0, ["in the archive"] * 2, b"")


@pytest.mark.parametrize(
    ("words", "receivers"),
    [(["-np", "1"], [0]), (["-np", "3", "--stdin", "all"], [0, 1, 2]), (["-np", "3", "--stdin", "1"], [1])],
    ids=["one", "all", "rank-1"],
)
@pytest.mark.parametrize("source", ["pipe", "file"])
def test_three_megabytes_arrive_exactly(tmp_path: Path, words: list[str], receivers: list[int], source: str) -> None:
    (tmp_path / "large").write_bytes(LARGE)
    program = sh("sha256sum > sum-$RANK")
    if source == "pipe":
        assert launch(*words, *program, stdin=LARGE, cwd=tmp_path).code == 0
    else:
        with open(tmp_path / "large", "rb") as large:
            assert launch(*words, *program, stdin=large, cwd=tmp_path).code == 0
            # All is read, and nothing is given back.
            assert os.lseek(large.fileno(), 0, os.SEEK_CUR) == len(LARGE)
    sums = {(tmp_path / f"sum-{rank}").read_text().split()[0] for rank in receivers}
    assert sums == {hashlib.sha256(LARGE).hexdigest()}


NOT_READ = "note: stdin is a terminal, which no rank reads"


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["-q", "cat"], ""),
        (["cat"], f"{NOT_READ}, so cat gets no input; --stdin 0 gives it to rank 0\n"),
        ([sys.executable, "-u"], f"{NOT_READ}, so {sys.executable} gets no input; --stdin 0 gives it to rank 0\n"),
        (["-np", "1", "true", ":", "-np", "1", "sh"], f"{NOT_READ}, so sh gets no input; --stdin 0 gives it to rank 0\n"),
        (["sh", "-c", "cat"], ""),
        (["--stdin", "none", "cat"], ""),
    ],
)
def test_an_interpreter_alone_on_a_terminal_gets_a_note(words: list[str], note: str) -> None:
    ours, terminal = pty.openpty()
    try:
        done = launch(*words, stdin=terminal)
    finally:
        os.close(terminal)
        os.close(ours)
    assert (done.code, done.out, done.words) == (0, b"", note)


def test_a_terminal_that_is_not_read_is_reported_with_v() -> None:
    ours, terminal = pty.openpty()
    try:
        done = launch("-v", "true", stdin=terminal)
    finally:
        os.close(terminal)
        os.close(ours)
    assert f"{NOT_READ} without --stdin\n" in done.words
    assert NOT_READ not in launch("-v", "cat").words


def test_a_loop_around_it_reads_every_line_itself(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("one\ntwo\nthree\n")
    loop = f"while read line; do echo loop $line; {' '.join(MPILAUNCH)} -np 2 true; done < lines"
    done = subprocess.run(["sh", "-c", loop], capture_output=True, env=environment(), cwd=tmp_path, timeout=30, check=False)
    assert (done.stdout, done.stderr) == (b"loop one\nloop two\nloop three\n", b"")


def test_a_rank_takes_of_a_file_no_more_than_it_reads(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f"{number}\n" for number in range(1, 7)))
    rank = "sh -c '[ $RANK = 0 ] && read x && echo rank $x; true'"
    loop = f"while read line; do echo loop $line; {' '.join(MPILAUNCH)} -np 2 {rank}; done"
    with open(tmp_path / "lines", "rb") as lines:
        done = subprocess.run(["sh", "-c", loop], stdin=lines, capture_output=True, env=environment(), timeout=30, check=False)
    assert done.stdout == b"loop 1\nrank 2\nloop 3\nrank 4\nloop 5\nrank 6\n"


def test_a_rank_that_does_not_read_holds_up_nobody() -> None:
    done = launch("-np", "2", "--stdin", "all", *sh("[ $RANK = 0 ] || sha256sum"), stdin=LARGE)
    assert (done.code, done.out.split()[0].decode()) == (0, hashlib.sha256(LARGE).hexdigest())


def test_a_rank_that_closes_its_stdin_continues() -> None:
    done = launch("-np", "1", *sh("exec < /dev/null; echo closed; exit 0"), stdin=LARGE)
    assert (done.code, done.out, done.err) == (0, b"closed\n", b"")


def test_a_node_that_is_lost_holds_up_nobody(tmp_path: Path) -> None:
    program = sh("echo $PPID > daemon-$RANK; [ $RANK = 0 ] && exec sleep 100; sha256sum > sum")
    words = ("--continue-on-error", "--stdin", "all", "-H", "local:1,local:1")
    with launching(*words, *program, stdin=subprocess.PIPE, cwd=tmp_path) as process:
        daemon, _ = wait_for_files(tmp_path / "daemon-0", tmp_path / "daemon-1")
        os.kill(int(daemon), signal.SIGKILL)
        done = Launched(0, *process.communicate(LARGE, timeout=20))
    assert process.returncode == 125, done.words
    assert (tmp_path / "sum").read_text().split()[0] == hashlib.sha256(LARGE).hexdigest()


def test_the_end_of_a_job_does_not_wait_for_stdin() -> None:
    read, write = os.pipe()
    try:
        with os.fdopen(read, "rb") as nobody_writes:
            assert launch("-np", "2", "echo", "done", stdin=nobody_writes).out == b"done\ndone\n"
    finally:
        os.close(write)


def test_what_comes_while_the_job_runs_arrives_at_once(tmp_path: Path) -> None:
    program = sh("while read line; do echo $line > got-$line; done; echo end")
    with launching("-np", "1", *program, stdin=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdin
        for word in ("one", "two", "three"):
            process.stdin.write(f"{word}\n".encode())
            process.stdin.flush()
            assert wait_for_files(tmp_path / f"got-{word}") == [f"{word}\n"]
        process.stdin.close()
        process.stdin = None
        assert finish(process).out == b"end\n"


def test_dev_null_is_an_end_of_file() -> None:
    assert launch("-np", "2", "--stdin", "all", "cat").code == 0


@pytest.mark.parametrize("who", ["0", "all", "none"])
def test_closed_stdin_is_an_end_of_file(who: str) -> None:
    shell = f"{' '.join(MPILAUNCH)} -np 2 --stdin {who} cat <&-; echo $?"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, env=environment(), timeout=20, check=False)
    assert (done.stdout, done.stderr) == (b"0\n", b"")


def test_heads_that_share_a_pipe_do_not_wait_for_what_another_has_read() -> None:
    read, write = os.pipe()
    try:
        with launching("-np", "1", "cat", stdin=read) as one, launching("-np", "1", "cat", stdin=read) as two:
            os.close(read)
            read = -1
            for number in range(50):
                os.write(write, b"%d\n" % number)
                time.sleep(0.01)
            os.close(write)
            write = -1
            ends = [finish(one), finish(two)]
    finally:
        for descriptor in (read, write):
            if descriptor >= 0:
                os.close(descriptor)
    assert [end.code for end in ends] == [0, 0]
    assert sorted(int(line) for end in ends for line in end.lines) == list(range(50))


@pytest.mark.parametrize("code", ["breakpoint()", "input()"])
def test_a_program_that_asks_the_terminal_gets_the_hint_which_option_lets_it(code: str) -> None:
    hint = "hint: it asked for input, and this rank gets none: --stdin 1 gives it yours, on a terminal too\n"
    program = (sys.executable, "-c", f"import os\nif os.environ['RANK'] == '1':\n    {code}\n    pass")
    ours, terminal = os.openpty()
    try:
        assert hint in launch("-np", "2", *program, stdin=terminal).words
        os.write(ours, b"q\n")  # the debugger's `quit` ends it in the same way
        done = launch("-np", "2", "--stdin", "1", *program, stdin=terminal)
        assert "it asked for input" not in done.words
        assert done.code == (1 if code == "breakpoint()" else 0)
    finally:
        os.close(ours)
        os.close(terminal)


def test_all_ranks_get_stdin_where_a_node_does_not_start(tmp_path: Path) -> None:
    script(tmp_path / "agent", '#!/bin/sh\n[ $1 = here ] && exec sh -c "$2"\n')
    agent = f"{tmp_path}/agent {{host}} {{command}}"
    words = ("--skip-unreachable", "--stdin", "all", "--agent", agent, "-H", "here:2,elsewhere:2")
    done = launch(*words, "cat", stdin=b"to all\n")
    assert (done.code, done.out) == (125, b"to all\n" * 2), done.words
