"""Failures on this machine that no other file proves: ends of ranks, limits, deadlines."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.failures import LIMITS, RANKS, SIGNALS, STRAYS, proves
from tests.support.launching import (
    WireToDaemon,
    finish,
    launch,
    launch_with_file_limit,
    launching,
    living,
    script,
    sh,
    stopped,
    wait_for_files,
    wait_until,
)

STAY = "exec 2> /dev/null; echo $$ > pid-$RANK; while :; do sleep 0.05; done"
AT_ONCE = "its daemon, at once"


# A rank fails


@proves(
    "rank-raises", RANKS, "a rank ends with a Python exception", finder=AT_ONCE,
    says="`rank 1 on localhost exited with code 1`, and its last lines with the exception", code="1", within=10,
)  # fmt: skip
def test_a_rank_that_raises() -> None:
    program = "import os, time\nif os.environ['RANK'] != '1': time.sleep(100)\nraise ValueError('loss is nan')"
    done = launch("-np", "3", sys.executable, "-c", program)
    assert done.code == 1
    report = done.words[done.words.index("error[") :]
    assert report.startswith("error[rank-failed]: rank 1 on localhost exited with code 1 after ")
    assert "    | ValueError: loss is nan\n" in report and "    ranks 0,2 stopped after it\n" in report


@pytest.mark.needs("gcc")
@proves(
    "rank-exits-at-once", RANKS, "a rank ends in its first millisecond", finder=AT_ONCE,
    says="`rank 1 on localhost exited with code 5`", code="5", within=20,
)  # fmt: skip
def test_a_rank_that_exits_at_once(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text('#include <stdlib.h>\n#include <unistd.h>\nint main(void) {\n'
                                     '  if (*getenv("RANK") == \'1\') _exit(5);\n  pause();\n}\n')  # fmt: skip
    subprocess.run(["gcc", "-o", "main", "main.c"], cwd=tmp_path, check=True)
    for _ in range(20):
        done = launch("-np", "3", "./main", cwd=tmp_path)
        assert done.code == 5
        assert done.words.startswith("error[rank-failed]: rank 1 on localhost exited with code 5 after 0.")
        assert "    ranks 0,2 stopped after it\n" in done.words


@proves(
    "rank-limit", RANKS, "a rank goes over a limit of its own (`ulimit -f`, `ulimit -t`)", finder=AT_ONCE,
    says="`rank 1 on localhost killed by SIGXFSZ (signal 25)`", code="128 + N", within=10,
)  # fmt: skip
@pytest.mark.parametrize(
    ("limit", "number"),
    [("-f 1; exec head -c 100000 /dev/zero > file", signal.SIGXFSZ), ("-S -t 1; while :; do :; done", signal.SIGXCPU)],
    ids=["file", "time"],
)
def test_a_rank_over_its_limit(tmp_path: Path, limit: str, number: signal.Signals) -> None:
    done = launch("-np", "2", *sh(f"[ $RANK = 0 ] && exec sleep 100; ulimit -c 0; ulimit {limit}"), cwd=tmp_path)
    assert done.code == 128 + number
    assert f"rank 1 on localhost killed by {number.name} (signal {number})" in done.words


@proves(
    "directory-goes", RANKS, "the working directory goes between the preparation and the start", finder=AT_ONCE,
    says="`could not be executed: No such file or directory`", code="127", within=10,
)  # fmt: skip
def test_a_directory_that_goes_in_the_last_moment(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with WireToDaemon() as daemon:
        daemon.until("hello")
        daemon.prepare("true", directory=str(place))
        daemon.until("ready")
        place.rmdir()
        daemon.send("launch")
        assert [(rank, number) for rank, number, _ in daemon.until("started")["failed"]] == [(0, 2)]
        daemon.until("finished")


# Signals


@proves(
    "rank-stopped", SIGNALS, "a rank is stopped (SIGSTOP), and then the job interrupted", finder="you: it may continue",
    says="`SIGINT to mpilaunch`", code="130", within=10,
)  # fmt: skip
def test_a_stopped_rank_is_ended_like_any_other(tmp_path: Path) -> None:
    with launching("-np", "2", "--grace", "0.5", *sh(STAY), cwd=tmp_path) as process:
        ranks = [int(text) for text in wait_for_files(tmp_path / "pid-0", tmp_path / "pid-1")]
        os.kill(ranks[1], signal.SIGSTOP)
        wait_until(lambda: stopped(ranks[1]), "the rank is stopped")
        process.send_signal(signal.SIGINT)
        done = finish(process)
    assert done.code == 130 and "error[interrupted]: SIGINT to mpilaunch\n" in done.words
    assert not [rank for rank in ranks if living(rank)]


# What ranks leave behind


@proves(
    "stdout-held", STRAYS, "a rank has ended, and a child of its holds stdout open",
    finder="its daemon, after 1 s without output",
    says="`warning: localhost: ended process 4711 (sleep), left behind by its rank`", code="0", within=10,
)  # fmt: skip
def test_a_child_that_holds_stdout_open_does_not_hold_the_job() -> None:
    done = launch("-np", "2", *sh("setsid sleep 1000 & echo $RANK"))
    assert (done.code, done.lines) == (0, ["0", "1"])
    assert done.words.count("(sleep), left behind by its rank") == 2


@proves(
    "data-loader", STRAYS, "a data loader that became a daemon of its own (two forks, a session, no environment)",
    finder="its daemon, by descent", says="`warning: localhost: ended process 4711 (python3), ...`", code="0", within=10,
)  # fmt: skip
def test_a_data_loader_that_became_a_daemon(tmp_path: Path) -> None:
    program = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.closerange(0, 100)
        os.open("/dev/null", os.O_RDWR)
        with open("loader", "w") as file:
            file.write(str(os.getpid()))
        time.sleep(1000)
    os._exit(0)
while not os.path.exists("loader") or not os.path.getsize("loader"):
    time.sleep(0.01)
"""
    done = launch("-np", "1", sys.executable, "-c", program, cwd=tmp_path)
    loader = int((tmp_path / "loader").read_text())
    assert done.code == 0 and not living(loader)
    assert f"warning: localhost: ended process {loader} (" in done.words


# Limits


@proves(
    "timeout-exact", LIMITS, "`--timeout`, with ranks that ignore SIGTERM and a `--grace`",
    finder="the head, at its deadlines", says="`error[timeout]: time limit of 1 s exceeded`", code="124", within=10,
)  # fmt: skip
def test_deadlines_are_kept_within_a_second(tmp_path: Path) -> None:
    limits = ("--timeout", "1", "--grace", "1", "--report", str(tmp_path / "report"))
    done = launch("-np", "2", *limits, *sh("trap '' TERM; while :; do sleep 0.05; done"))
    phases = json.loads((tmp_path / "report").read_text())["phases"]
    assert 2 <= phases["run"] < 10, "nothing else waits, the default grace time least of all"
    assert done.code == 124 and "error[timeout]: time limit of 1 s exceeded\n" in done.words


@proves(
    "start-timeout-exact", LIMITS, "`--start-timeout`, with nodes that say nothing", finder="the head, at its deadline",
    says="`2 of 2 nodes: timeout[1-2]: no answer in time after 1.0 s`", code="1", within=10,
)  # fmt: skip
def test_the_start_deadline_is_kept_within_a_second() -> None:
    done = launch("--agent", "fake", "-H", "timeout[1-2]", "--start-timeout", "1", "true")
    assert done.code == 1
    assert done.words.startswith("error[start-timeout]: 2 of 2 nodes: timeout[1-2]: no answer in time after ")


@proves(
    "files-of-the-head", LIMITS, "600 nodes, and 1,024 open files for the head", finder="the head, before it starts anything",
    says="`600 nodes and 600 ranks need 2432 open files, the limit is 1024`", code="1", within=10,
)  # fmt: skip
def test_too_few_files_for_the_head() -> None:
    done = launch_with_file_limit(1024, "--agent", "fake", "-H", "node[1-600]", "touch", "ran")
    assert done.returncode == 1
    needs = "limit of open files too low: 600 nodes and 600 ranks need 2432 open files, the limit is 1024\n"
    assert done.stderr.startswith(f"error[start-file-limit]: this machine: {needs}")
    assert "hint: raise it: ulimit -n" in done.stderr


def test_too_few_files_for_the_nodes_that_are_asked_first() -> None:
    done = launch_with_file_limit(256, "--agent", "fake", "-H", "node[1-100]", "--map-by", "ppr:1:socket", "touch", "ran")
    assert done.returncode == 1
    needs = "limit of open files too low: 100 nodes need 432 open files, the limit is 256\n"
    assert done.stderr.startswith(f"error[start-file-limit]: this machine: {needs}")


@pytest.mark.parametrize("files", [5, 6, 7, 12])
@pytest.mark.parametrize(
    ("words", "needs"),
    [
        (("-np", "1", "true"), "1 node and 1 rank need 36"),
        (("-H", "a", "--agent", "fake", "--map-by", "ppr:1:core", "true"), "1 node needs 36"),
        (("up", "-H", "a"), "1 node and 1 rank need 33"),
    ],
    ids=["launch", "survey", "up"],
)
def test_a_head_that_may_open_hardly_a_file_names_the_limit(files: int, words: tuple[str, ...], needs: str) -> None:
    done = launch_with_file_limit(files, *words)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    start = f"error[start-file-limit]: this machine: limit of open files too low: {needs} open files, "
    assert done.stderr.startswith(start), done.stderr
    assert f"the limit is {files}\nhint: raise it: ulimit -n" in done.stderr


@pytest.mark.parametrize("files", [3, 4, 5, 6, 12])
def test_a_node_that_may_open_hardly_a_file_names_the_limit(files: int, tmp_path: Path) -> None:
    agent = script(tmp_path / "agent", f'#!/bin/sh\nshift; ulimit -n {files}; exec /bin/sh -c "$1"\n')
    done = launch("--agent", f"{agent} {{host}} {{command}}", "--python", "/usr/bin/python3", "-H", "a", "true")
    assert done.code == 1 and "error[start-file-limit]: a: limit of open files too low: " in done.words, done.words


def test_just_enough_files_are_enough() -> None:
    assert launch_with_file_limit(32 + 10 * 4, "--agent", "fake", "-H", "node[1-10]", "--mpi", "none", "true").returncode == 0
    assert launch_with_file_limit(233, "-np", "64", "--oversubscribe", "true").returncode == 0
    refused = launch_with_file_limit(232, "-np", "64", "--oversubscribe", "true")
    assert refused.stderr.startswith("error[start-file-limit]: localhost: limit of open files too low: 64 ranks need 233 open")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a file system of 64 KiB; needs root."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.testbed
@proves(
    "disk-full-files", LIMITS, "the disk is full under `--output-filename`", finder="the head",
    says="`the file of rank 0: No space left on device: the files are incomplete from here on`, once, and at the end",
    code="74", within=10,
)  # fmt: skip
def test_a_full_disk_under_the_files_is_reported_once_and_the_job_continues(small_disk: Path) -> None:
    lines = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $RANK a line that fills the disk $i; done"
    done = launch("-np", "4", "--output-filename", str(small_disk / "out"), *sh(lines))
    assert done.code == 74
    told = r": the file of rank \d: No space left on device: the files are incomplete from here on\n"
    assert len(re.findall("warning" + told, done.words)) == 1, "while it runs"
    assert re.search(r"^error\[output-lost\]" + told, done.words, re.MULTILINE), "and at its end"
    assert len(done.lines) == 4 * 3000, "what goes to stdout is whole"
    assert "Traceback" not in done.words


def test_prlimit_is_there() -> None:
    assert shutil.which("prlimit"), "apt-get install util-linux"


def test_a_rank_that_dies_of_a_signal_to_the_whole_job_is_no_failure(tmp_path: Path) -> None:
    program = "echo $$ > pid-$RANK; [ $RANK = 0 ] && exec sleep 60; trap '' TERM; echo up; sleep 0.7"
    with launching("-np", "2", *sh(program), cwd=tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        (rank,) = wait_for_files(tmp_path / "pid-0")
        os.kill(int(rank), signal.SIGTERM)  # the order in which a batch system happens to signal them
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        done = finish(process)
    assert done.code == 143 and "error[preempted]: SIGTERM to mpilaunch" in done.words and "rank-failed" not in done.words
