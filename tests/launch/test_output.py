"""Output of real launches: whole lines whatever the writes, every byte, in order, and in bounded memory."""

from __future__ import annotations

import os
import pty
import random
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.failures import LIMITS, SIGNALS, proves
from tests.support.launching import (
    MPILAUNCH,
    environment,
    finish,
    guard_and_daemon,
    launch,
    launching,
    peak_memory,
    script,
    sh,
    wait_for_files,
    wait_until,
)

BINARY = bytes(range(256)) * 40
"""Bytes that are no text and do not end with a newline."""

PARTIAL_WRITES = """
import os, random, sys
rank = os.environ["RANK"].encode()
text = open(sys.argv[1], "rb").read().replace(b"#", rank.rjust(2, b"0"))
randomly, start = random.Random(int(rank)), 0
while start < len(text):
    # Many writes that end inside a line, and enough large ones to come to an end.
    size = randomly.choice((1, 7, 50, 3000, 70000))
    start += os.write(1, text[start:start + size])
"""

BLOCKS = """
import os, select, sys
rank, left, block = os.environ["RANK"], int(sys.argv[1]), (b"x" * 999 + b"\\n") * 4
os.set_blocking(1, False)
written = 0
while left:
    if select.select([], [1], [], 0.5)[1]:
        try:
            written += os.write(1, block)
            left -= 1
        except BlockingIOError:
            pass
    elif not os.path.exists("blocked-" + rank):
        with open("part-" + rank, "w") as file: file.write(str(written))
        os.rename("part-" + rank, "blocked-" + rank)
"""


def tagged(tag: str, *lines: str) -> bytes:
    return "".join(f"{tag}{line}\n" for line in lines).encode()


# Whole lines


def test_64_ranks_with_100000_lines_each_in_partial_writes_and_not_one_broken_line(tmp_path: Path) -> None:
    randomly = random.Random(1)
    pads = ["." * length for length in (0, 1, 2, 5, 9, 30)]
    text = "".join(f"#{number}{pad}\n" for number, pad in enumerate(randomly.choices(pads, k=100_000)))
    (tmp_path / "text").write_text(text, encoding="ascii")
    script(tmp_path / "write.py", PARTIAL_WRITES, mode=0o644)
    words = ["-np", "64", "--oversubscribe", "-H", "local:32,local:32", "--python", sys.executable, "write.py", "text"]
    with open(tmp_path / "out", "wb") as out, launching(*words, stdout=out, cwd=tmp_path) as process:
        done = finish(process, limit=90)
    assert (done.code, done.err) == (0, b"")
    whole = (tmp_path / "out").read_bytes()
    # A run is what one rank wrote on end; put together, a rank's runs are its text, whole and in order.
    runs: dict[bytes, list[bytes]] = {}
    for run in re.finditer(rb"^(\d\d)\d+\.*\n(?:\1\d+\.*\n)*", whole, re.MULTILINE):
        runs.setdefault(run[1], []).append(run[0])
    assert sum(len(run) for found in runs.values() for run in found) == len(whole)
    assert len(runs) == 64
    wrong = [rank for rank, found in runs.items() if b"".join(found) != text.encode().replace(b"#", rank)]
    assert not wrong


def test_lines_of_stdout_and_stderr_do_not_mix_in_one_file(tmp_path: Path) -> None:
    program = "i=0; while [ $i -lt 300 ]; do printf 'out '; printf '%s\\n' $i; printf 'err ' >&2; echo $i >&2; i=$((i+1)); done"
    with open(tmp_path / "both", "wb") as both, launching("-np", "4", *sh(program), stdout=both, stderr=both) as process:
        assert finish(process).code == 0
    lines = (tmp_path / "both").read_bytes().splitlines()
    expected = [b"%s %d" % (kind, number) for kind in (b"out", b"err") for number in range(300)] * 4
    assert sorted(lines) == sorted(expected)


def test_a_last_line_without_newline_gets_one() -> None:
    assert launch("-np", "3", *sh("printf rank-$RANK")).lines == ["rank-0", "rank-1", "rank-2"]


def test_a_line_longer_than_the_limit_is_broken_and_loses_nothing(tmp_path: Path) -> None:
    program = "import os, sys\nsys.stdout.write(os.environ['RANK'] * 3_000_000 + '\\n')\n"
    done = launch("-np", "2", "--tag", "<{rank}>", sys.executable, "-c", program)
    lines = done.out.splitlines()
    for rank in (b"0", b"1"):
        pieces = [line.removeprefix(b"<%s>" % rank) for line in lines if line.startswith(b"<%s>" % rank)]
        assert b"".join(pieces) == rank * 3_000_000
        assert max(map(len, pieces)) < 2 << 20
    assert len(lines) < 10


def test_carriage_returns_stay_where_nobody_watches() -> None:
    program = sh("printf '10%%\\r100%%\\r\\n'")
    assert launch("-np", "2", *program).out == b"10%\r100%\r\n" * 2
    done = launch("-np", "2", "--tag", "{rank}:", *program)
    assert sorted(done.out.split(b"\n")) == [b"", b"0:10%\r0:100%\r", b"1:10%\r1:100%\r"]


# Tags


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--tag", "rank"], rb"\[0\] a\n\[0\] b\n"),
        (["-H", "local", "--tag", "host"], rb"local: a\nlocal: b\n"),
        (["--tag-output"], rb"\[1,0\]<stdout>:a\n\[1,0\]<stdout>:b\n"),
        (["--tag", "{rank:3}/{local_rank}/{node_rank}/{stream}|"], rb"  0/0/0/stdout\|a\n  0/0/0/stdout\|b\n"),
        (["--timestamp-output"], rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} [ab]\n){2}"),
        (["--timestamp-output", "--tag", "rank"], rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} \[0\] [ab]\n){2}"),
        (["--tag", "{job} "], rb"([0-9a-f]{16} [ab]\n){2}"),
    ],
)
def test_tags(words: list[str], expected: bytes) -> None:
    done = launch("-np", "1", *words, *sh("echo a; printf b"))
    assert re.fullmatch(expected, done.out)


def test_stderr_has_its_own_tag_and_place() -> None:
    done = launch("-np", "2", "--tag-output", *sh("echo out; echo err >&2"))
    assert done.lines == ["[1,0]<stdout>:out", "[1,1]<stdout>:out"]
    assert sorted(done.err.splitlines()) == [b"[1,0]<stderr>:err", b"[1,1]<stderr>:err"]


def test_each_node_names_its_lines() -> None:
    done = launch("--agent", "fake", "-H", "node1,node2:2", "--tag", "host", *sh("echo $RANK"))
    assert done.lines == ["node1: 0", "node2: 1", "node2: 2"]


# Where it goes


def test_merged_stderr_keeps_the_order_of_writing() -> None:
    program = "i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
    done = launch("-np", "2", "--tag", "{rank} {stream} ", "--merge-stderr-to-stdout", *sh(program))
    assert done.err == b""
    expected = [f"{kind} {number}" for number in range(500) for kind in ("out", "err")]
    for rank in "01":
        tag = f"{rank} stdout ".encode()
        assert [line[len(tag) :].decode() for line in done.out.splitlines() if line.startswith(tag)] == expected


def test_files_hold_the_exact_bytes(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(BINARY)
    words = ["-np", "2", "--tag", "rank", "--output-filename", "logs/deep"]
    done = launch(*words, *sh("cat bytes; echo err-$RANK >&2"), cwd=tmp_path)
    assert (done.code, sorted(done.err.splitlines())) == (0, [b"[0] err-0", b"[1] err-1"])
    files = {file.name: file.read_bytes() for file in (tmp_path / "logs" / "deep").iterdir()}
    assert files == {
        "rank-0000.out": BINARY,
        "rank-0001.out": BINARY,
        "rank-0000.err": b"err-0\n",
        "rank-0001.err": b"err-1\n",
    }
    assert done.out.count(b"\n[0] ") + done.out.count(b"\n[1] ") + 1 == done.out.count(b"\n")


def test_files_of_an_earlier_run_are_replaced_but_never_through_a_link(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "rank-0000.out").write_bytes(b"old and much longer\n")
    assert launch("-np", "1", "--output-filename", str(logs), "echo", "new").code == 0
    assert (logs / "rank-0000.out").read_bytes() == b"new\n"
    (tmp_path / "precious").write_bytes(b"precious")
    (logs / "rank-0000.out").unlink()
    (logs / "rank-0000.out").symlink_to(tmp_path / "precious")
    done = launch("-np", "1", "--output-filename", str(logs), "echo", "new")
    assert (done.code, done.out) == (2, b"")
    assert "error[output-directory]" in done.words and "rank-0000.out" in done.words
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_equal_output_is_folded() -> None:
    program = 'if [ $RANK = 2 ]; then echo other; else echo same; printf "two lines"; fi; [ $RANK = 3 ] && echo error >&2; true'
    done = launch("--agent", "fake", "-H", "node[01-04]", "--fold", *sh(program))
    assert done.code == 0
    assert done.out == tagged("node[01-02,04]: ", "same", "two lines") + tagged("node03: ", "other")
    assert done.err == tagged("node04: ", "error")


def test_ranks_of_one_node_fold_by_their_numbers() -> None:
    done = launch("-np", "5", "--fold", *sh("echo $((RANK % 2))"))
    assert done.out == tagged("[0,2,4] ", "0") + tagged("[1,3] ", "1")


def test_folded_output_of_a_failed_job_is_printed() -> None:
    done = launch("-np", "2", "--fold", *sh("echo before; echo why >&2; exit 4"))
    assert done.code == 4
    assert b"before" in done.out and b"why" in done.err


# One rank alone


def test_one_rank_passes_its_bytes_as_they_are() -> None:
    done = launch("-np", "1", *sh("cat; printf '\\r50%%' >&2"), stdin=BINARY * 100)
    assert (done.code, done.out, done.err) == (0, BINARY * 100, b"\r50%")


def test_the_prompt_of_one_rank_is_seen_before_it_is_answered() -> None:
    with launching("-np", "1", *sh("printf 'name? '; read name; echo hello $name"), stdin=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        assert process.stdout.read(6) == b"name? "
        process.stdin.write(b"Ada\n")
        process.stdin.close()
        process.stdin = None
        assert finish(process).out == b"hello Ada\n"


# Slow and broken readers


def test_a_slow_reader_slows_the_ranks_in_bounded_memory_and_loses_nothing(tmp_path: Path) -> None:
    writes, ranks = 8000, 4
    script(tmp_path / "write.py", BLOCKS, mode=0o644)
    words = ["-np", str(ranks), "--oversubscribe", "-H", f"local:{ranks}", "--python", sys.executable, "write.py", str(writes)]
    with launching(*words, cwd=tmp_path) as process:
        assert process.stdout
        guard, daemon = guard_and_daemon(process.pid)
        # Nobody reads: every rank comes to a halt, long before it has written everything.
        stopped_at = [int(text) for text in wait_for_files(*(tmp_path / f"blocked-{rank}" for rank in range(ranks)))]
        assert max(stopped_at) < 8 << 20 < writes * 4000
        size, lines, peaks = 0, (b"x" * 999 + b"\n") * 1100, dict[int, int]()
        while data := process.stdout.read(1 << 20):
            assert data == lines[size % 1000 :][: len(data)]
            size += len(data)
            for pid in (process.pid, guard, daemon):
                peaks[pid] = max(peaks.get(pid, 0), peak_memory(pid))
        done = finish(process)
    assert (done.code, done.err, size) == (0, b"", writes * 4000 * ranks)
    assert 0 < max(peaks.values()) < 100 << 20, "128 MB went through"


@proves(
    "head-1", SIGNALS, "the reader of the output goes away (`| head -1`)", finder="the head", says="nothing", code="141",
    within=10,
)  # fmt: skip
def test_a_reader_that_goes_away_ends_the_job_without_a_word() -> None:
    shell = f'{" ".join(MPILAUNCH)} -np 2 yes | head -1; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, env=environment(), timeout=20, check=False)
    assert (done.stdout, done.stderr) == (b"y\n141\n", b"")


@proves(
    "disk-full", LIMITS, "mpilaunch's stdout is a file on a full disk", finder="the head",
    says="`output can no longer be written: No space left on device`", code="74", within=10,
)  # fmt: skip
def test_a_full_disk_is_reported_and_the_job_continues(tmp_path: Path) -> None:
    program = sh("echo lost; echo $RANK > ran-$RANK")
    with open("/dev/full", "wb") as full, launching("-np", "2", *program, stdout=full, cwd=tmp_path) as process:
        done = finish(process)
    assert done.code == 74
    assert "error[output-lost]: output can no longer be written: No space left on device" in done.words
    assert wait_for_files(tmp_path / "ran-0", tmp_path / "ran-1") == ["0\n", "1\n"]


@pytest.mark.parametrize(
    ("words", "code"),
    [("-np 1 sh -c 'exit 7' 2>/dev/full", 7), ("-np 1 echo x >/dev/full 2>&1", 74), ("--help >/dev/full 2>/dev/null", 74)],
)
def test_the_exit_code_is_kept_where_nothing_can_be_said(words: str, code: int) -> None:
    command = f"{' '.join(MPILAUNCH)} {words}"
    done = subprocess.run(["sh", "-c", command], env=environment(), capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


def test_closed_output_is_no_fault(tmp_path: Path) -> None:
    words = " ".join(MPILAUNCH)
    done = subprocess.run(
        ["sh", "-c", f"{words} -np 2 sh -c 'echo out; echo err >&2; echo > ran-$RANK' >&- 2>&-"],
        env=environment(), cwd=tmp_path, timeout=20, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode in (0, 74)
    wait_for_files(tmp_path / "ran-0", tmp_path / "ran-1")


# On a terminal


def on_terminal(words: list[str], cwd: Path, needed: bytes) -> bytes:
    """Run mpilaunch with its stdout and stderr on a terminal, and return all that was written there."""
    ours, theirs = pty.openpty()
    written = b""
    try:
        with launching(*words, stdout=theirs, stderr=theirs, env={"TERM": "xterm", "NO_COLOR": "1"}, cwd=cwd) as process:
            os.close(theirs)

            def read() -> bool:
                nonlocal written
                if select.select([ours], [], [], 0.01)[0]:
                    try:
                        written += os.read(ours, 65536)
                    except OSError:  # how a terminal says that nobody has it open any more
                        return True
                if needed in written:
                    (cwd / "seen").touch()
                return False

            wait_until(read, f"the terminal is closed; it showed {written!r}")
            assert finish(process).code == 0
    finally:
        os.close(ours)
    return written


def screen(written: bytes) -> list[str]:
    """Return the lines that a terminal shows after it has got these bytes."""
    lines: list[str] = [""]
    column = 0
    for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x1b]", written.decode()):
        if piece == "\n":
            lines.append("")
        elif piece == "\r":
            column = 0
        elif piece == "\x1b[K":
            lines[-1] = lines[-1][:column]
        elif not piece.startswith("\x1b"):
            lines[-1] = lines[-1][:column] + piece + lines[-1][column + 1 :]
            column += 1
            continue
        if piece == "\n":
            column = 0
    return lines


def test_progress_bars_of_two_ranks_do_not_wreck_a_terminal(tmp_path: Path) -> None:
    bar = "for i in 1 2 3; do printf '\\rstep %s of rank %s' $i $RANK; done"
    wait = "while [ ! -e seen ]; do sleep 0.01; done; printf '\\rdone\\n'"
    written = on_terminal(["-np", "2", "--tag", "rank", *sh(f"{bar}; {wait}")], tmp_path, needed=b"step 3")
    assert sorted(screen(written)) == ["", "[0] done", "[1] done"]


def test_a_prompt_of_one_of_two_ranks_is_seen_on_a_terminal(tmp_path: Path) -> None:
    ask = "[ $RANK = 1 ] && printf 'sure? '; while [ ! -e seen ]; do sleep 0.01; done; echo went on"
    written = on_terminal(["-np", "2", "--tag", "rank", *sh(ask)], tmp_path, needed=b"[1] sure? ")
    assert sorted(screen(written)) == ["", "[0] went on", "[1] sure? went on"]
