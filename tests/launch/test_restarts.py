"""Jobs that are kept going: on real hosts that fail in the middle, and here. No attempt leaves a process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import Hosts
from tests.support.launching import (
    LIMIT,
    MPILAUNCH,
    QUICK_HEARTBEAT,
    finish,
    launch,
    launching,
    sh,
    wait_for_files,
    wait_until,
)
from tests.support.processes import host_is_empty, kill_daemon

JOB = 'echo $(hostname) $WORLD_SIZE >up-$MPILAUNCH_RESTART_COUNT-$RANK; [ $MPILAUNCH_RESTART_COUNT != %s ] || exec sleep 600'
"""Each rank writes where it is, and stays in attempts that a test is to break."""


def attempt(number: int) -> list[str]:
    """Return what the ranks of an attempt wrote, in rank order."""
    found = sorted(Path.cwd().glob(f"up-{number}-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    return [path.read_text().strip() for path in found]


def notes(words: str) -> list[str]:
    return [line.removeprefix("note: ") for line in words.splitlines() if line.startswith("note: ")]


# On hosts


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Give four hosts to break."""
    with Hosts(4) as made:
        yield made


@contextlib.contextmanager
def running(hosts: Hosts, ranks: int, *arguments: str, program: str = JOB % 0) -> Iterator[subprocess.Popen[str]]:
    """Start a job and wait until all ranks of its first attempt run."""
    with hosts.popen([*MPILAUNCH, *arguments, "sh", "-c", program]) as job:
        try:
            wait_until(lambda: (len(attempt(0)) == ranks and all(attempt(0))) or job.poll() is not None, "the ranks run")
            assert job.poll() is None, job.communicate()
            yield job
        finally:
            job.kill()


def ended(hosts: Hosts, job: subprocess.Popen[str], code: int = 0, limit: float = LIMIT) -> str:
    """Wait for the end of a job; return what it said. Nothing of it is left on any host."""
    _, errors = job.communicate(timeout=limit)
    assert job.returncode == code, errors
    assert all(host_is_empty(hosts, name) for name in hosts.names)
    return errors


@pytest.mark.slow
@pytest.mark.testbed
def test_a_rank_that_fails_once(hosts: Hosts, shared: Path) -> None:
    program = 'echo $MASTER_PORT >port-$MPILAUNCH_RESTART_COUNT; [ $RANK$MPILAUNCH_RESTART_COUNT != 10 ] || exit 3; echo $RANK'
    done = hosts.launch("-H", "node[01-02]", "--max-restarts", "2", "--output-filename", "out", "sh", "-c", program)
    assert (done.returncode, notes(done.stderr)[1:]) == (0, ["attempt 2 of 3 begins"])
    assert notes(done.stderr)[0].startswith("attempt 1: rank 1 on node02 exited with code 3 after ")
    assert notes(done.stderr)[0].partition("; attempt 2 of 3 in ")[2] in ("0.8 s", "0.9 s", "1.0 s")
    assert Path("port-0").read_text() != Path("port-1").read_text()
    assert Path("out/restart-1/rank-0001.out").read_text() == "1\n"
    assert sorted(path.name for path in Path("out").iterdir()) == [
        *("rank-0000.err", "rank-0000.out", "rank-0001.err", "rank-0001.out", "restart-1")
    ]
    assert all(host_is_empty(hosts, name) for name in hosts.names)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.testbed
def test_a_host_whose_link_goes_down_is_replaced_by_a_spare(hosts: Hosts, shared: Path) -> None:
    arguments = ("-H", "node[01-04]:2", "--spares", "1", "--max-restarts", "1", *QUICK_HEARTBEAT)
    with running(hosts, 6, *arguments) as job:
        hosts.link("node02", up=False)
        words = ended(hosts, job)
    assert attempt(0) == [f"node{number:02} 6" for number in (1, 1, 2, 2, 3, 3)]
    assert attempt(1) == [f"node{number:02} 6" for number in (1, 1, 4, 4, 3, 3)], "the others keep their ranks"
    assert notes(words)[-1] == "attempt 2 of 2 begins, with node04 for node02"


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.parametrize("agent", ["ssh", "openssh"])
def test_a_host_that_dies_is_replaced_by_a_spare(hosts: Hosts, shared: Path, agent: str) -> None:
    arguments = ("--agent", agent, "-H", "node[01-03]", "--spares", "1", "--max-restarts", "3", "--report", "report.json")
    with running(hosts, 2, *arguments) as job:
        hosts.stop_sshd("node01")
        kill_daemon(hosts, "node01")
        ended(hosts, job)
    assert (attempt(0), attempt(1)) == (["node01 2", "node02 2"], ["node03 2", "node02 2"])
    report = json.loads(Path("report.json").read_text())
    first, second = report["attempts"]
    assert (first["cause"], first["host"], first["nodes"]) == ("node-lost", "node01", ["node01", "node02"])
    assert (second["cause"], second["restart"], second["nodes"]) == ("ok", 1, ["node03", "node02"])
    assert second["job_id"] == first["job_id"] + "-1" == report["job_id"]
    assert [node["name"] for node in report["nodes"]] == ["node03", "node02"]
    assert report["verdict"]["cause"] == "ok"


@pytest.mark.slow
@pytest.mark.testbed
def test_a_job_continues_smaller(hosts: Hosts, shared: Path) -> None:
    with running(hosts, 6, "-H", "node[01-03]:2", "--nnodes", "1:3", "--max-restarts", "2") as job:
        hosts.stop_sshd("node02")
        kill_daemon(hosts, "node02")
        words = ended(hosts, job)
    assert attempt(1) == ["node01 4", "node01 4", "node03 4", "node03 4"]
    assert notes(words)[-1] == "attempt 2 of 3 begins, with 2 nodes instead of 3: node[01,03]"


@pytest.mark.slow
@pytest.mark.testbed
def test_a_job_continues_in_multiples(hosts: Hosts, shared: Path) -> None:
    with running(hosts, 4, "-H", "node[01-04]", "--nnodes", "2:4", "--node-unit", "2", "--max-restarts", "1") as job:
        kill_daemon(hosts, "node02")
        words = ended(hosts, job)
    assert attempt(1) == ["node01 2", "node03 2"]
    assert notes(words)[-1] == "attempt 2 of 2 begins, with 2 nodes instead of 4: node[01,03]"


@pytest.mark.slow
@pytest.mark.testbed
def test_hosts_that_are_not_reached_at_the_start_are_replaced_or_left_out(hosts: Hosts, shared: Path) -> None:
    hosts.stop_sshd("node02")
    done = hosts.launch("-H", "node[01-03]", "--spares", "1", "hostname")
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["node01", "node03"])
    assert notes(done.stderr)[0].startswith("1 of 2 nodes: node02: connection refused after ")
    assert notes(done.stderr)[0].endswith("; continues with node03 for node02")
    done = hosts.launch("-H", "node[01-03]", "--nnodes", "1:3", "hostname")
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["node01", "node03"])
    done = hosts.launch("-H", "node[01-03]", "--nnodes", "3:3", "--max-restarts", "5", "hostname")
    assert (done.returncode, done.stdout) == (1, ""), "a first start that fails is not repeated"
    assert done.stderr.startswith("error[start-connection-refused]: 1 of 3 nodes: node02: ")


@pytest.mark.slow
@pytest.mark.testbed
def test_a_host_that_comes_back_is_waited_for(hosts: Hosts, shared: Path) -> None:
    with running(hosts, 2, "-H", "node[01-02]", "--max-restarts", "5") as job:
        hosts.stop_sshd("node02")
        kill_daemon(hosts, "node02")
        assert job.stderr is not None
        for line in job.stderr:
            if "attempt 2: " in line:
                assert "node02: connection refused" in line
                break
        hosts.start_sshd("node02")
        ended(hosts, job)
    assert [len(attempt(number)) for number in range(3)] == [2, 0, 2]


@pytest.mark.slow
@pytest.mark.testbed
def test_a_host_that_does_not_come_back_ends_the_job(hosts: Hosts, shared: Path) -> None:
    with running(hosts, 2, "-H", "node[01-02]", "--max-restarts", "1", "--report", "report.json") as job:
        hosts.stop_sshd("node02")
        kill_daemon(hosts, "node02")
        words = ended(hosts, job, 125)
    error = words[words.index("error[") :].splitlines()
    assert error[0].startswith("error[start-connection-refused]: 1 of 2 nodes: node02: connection refused after ")
    assert "    not started again: --max-restarts 1 is reached" in error
    assert any(line.startswith("    attempt 1: node02: lost: ") for line in error)
    report = json.loads(Path("report.json").read_text())
    assert [found["cause"] for found in report["attempts"]] == ["node-lost", "start-connection-refused"]
    assert (report["verdict"]["cause"], report["verdict"]["exit_code"]) == ("start-connection-refused", 125)


@pytest.mark.slow
@pytest.mark.testbed
def test_the_discovery_script_says_which_hosts_there_are(hosts: Hosts, shared: Path) -> None:
    Path("there").write_text("node01\nnode03:2\nnode04\n")
    arguments = ("-H", "node[01-02]", "--nnodes", "1:4", "--max-restarts", "1", "--host-discovery-script", "cat there")
    with running(hosts, 2, *arguments) as job:
        kill_daemon(hosts, "node02")
        ended(hosts, job)
    assert attempt(1) == ["node01 4", "node03 4", "node03 4", "node04 4"]


@pytest.mark.slow
@pytest.mark.testbed
def test_preemption_leaves_the_ranks_the_whole_grace_time(hosts: Hosts, shared: Path) -> None:
    save = "trap 'sleep 2; echo >saved-'$RANK'; exit' TERM; echo here >up-0-$RANK; while :; do sleep 0.01; done"
    arguments = ("-H", "node[01-02]", "--grace", "3", "--max-restarts", "5")
    with running(hosts, 2, *arguments, program=save) as job:
        job.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        # timeout(1) and some schedulers say it twice.
        job.send_signal(signal.SIGTERM)
        words = ended(hosts, job, 143)
    assert "error[preempted]: SIGTERM to mpilaunch\n" in words
    assert "attempt 2" not in words
    assert sorted(path.name for path in Path.cwd().glob("saved-*")) == ["saved-0", "saved-1"]


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.testbed
def test_an_interrupt_during_a_later_start_ends_the_job(hosts: Hosts, shared: Path) -> None:
    with running(hosts, 2, "-H", "node[01-02]", "--max-restarts", "5", *QUICK_HEARTBEAT) as job:
        hosts.link("node02", up=False)
        assert job.stderr is not None
        for line in job.stderr:
            if line == "note: attempt 2 of 6 begins\n":
                break
        time.sleep(0.5)
        began = time.monotonic()
        job.send_signal(signal.SIGINT)
        words = ended(hosts, job, 130)
    assert time.monotonic() - began < 10, "the start has 60 s"
    assert words.startswith("error[interrupted]: SIGINT to mpilaunch before attempt 2\n")


# Here: what needs no hosts


def test_a_node_that_failed_twice_rests(tmp_path: Path) -> None:
    names = ["localhost", "127.0.0.1", os.uname().nodename]
    program = sh("[ $NODE_RANK != 1 ] || [ $MPILAUNCH_RESTART_COUNT = 2 ]")
    words = ("-H", ",".join(names), "--spares", "1", "--max-restarts", "2", "--report", "r.json")
    assert launch(*words, *program, cwd=tmp_path).code == 0
    attempts = json.loads((tmp_path / "r.json").read_text())["attempts"]
    assert [found["nodes"] for found in attempts] == [names[:2], names[:2], [names[0], names[2]]]


def test_the_limit_of_restarts(tmp_path: Path) -> None:
    done = launch("-np", "1", "--max-restarts", "1", "--report", "r.json", *sh("echo x >>ran; exit 7"), cwd=tmp_path)
    assert done.code == 7
    assert (tmp_path / "ran").read_text() == "x\n" * 2
    first, *_, last = done.words[done.words.index("error[") :].splitlines()
    assert first.startswith("error[rank-failed]: rank 0 on localhost exited with code 7 after ")
    assert "    this was attempt 2; before it:\n    attempt 1: rank 0 on localhost exited with code 7" in done.words
    assert last == "    not started again: --max-restarts 1 is reached"
    report = json.loads((tmp_path / "r.json").read_text())
    assert [(found["restart"], found["exit_code"]) for found in report["attempts"]] == [(0, 7), (1, 7)]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (2, ["--np", "0", "true"]),
        (2, ["-H", "local", "--stdin", "7", "true"]),
        (1, ["no-such-program"]),
        (5, ["--no-restart-codes", "2,5-9", *sh("exit 5")]),
        (124, ["--timeout", "0.3", "sleep", "600"]),
        (3, ["--timeout", "1", *sh("exit 3")]),
    ],
    ids=["option", "value", "program", "code", "timeout", "time-left"],
)
def test_what_is_not_started_again(code: int, words: list[str]) -> None:
    done = launch("--max-restarts", "9", *words)
    assert done.code == code
    assert "attempt 2" not in done.words


def test_the_files_of_an_attempt_hold_what_those_before_have_said(tmp_path: Path) -> None:
    for stale in ("out.0", "err.0"):
        (tmp_path / stale).write_text("of another job\n")
    program = sh("n=$MPILAUNCH_RESTART_COUNT; echo $n; echo why $n >&2; exit $((3 - 3 * n))")
    files = ("--output-file", "out.{rank}", "--error-file", "err.{rank}")
    assert launch("-np", "1", "--max-restarts", "1", *files, *program, cwd=tmp_path).code == 0
    assert [(tmp_path / name).read_text() for name in ("out.0", "err.0")] == ["0\n1\n", "why 0\nwhy 1\n"]


def test_a_later_attempt_that_does_not_start_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "once.sh").write_text("#!/bin/sh\nrm once.sh\nexit 7\n")
    (tmp_path / "once.sh").chmod(0o755)
    first, last = (launch("-np", "1", "--max-restarts", "1", "./once.sh", cwd=tmp_path) for _ in range(2))
    assert (first.code, last.code) == (7, 1)
    hint = last.words.splitlines()[-1]
    assert hint == "hint: give its path, or --wdir DIR, or -x PATH"
    # The head knows the general one only, when an attempt before has run.
    assert first.words.splitlines()[-1].startswith("hint: the program must be on every node")


def test_an_interrupt_between_attempts_ends_the_job(tmp_path: Path) -> None:
    arguments = ("-np", "1", "--max-restarts", "9", "--report", "r.json")
    with launching(*arguments, *sh("exit 3"), cwd=tmp_path) as process:
        assert process.stderr is not None
        heard = process.stderr.readline().decode()
        assert "; attempt 2 of 10 in " in heard
        process.send_signal(signal.SIGINT)
        done = finish(process)
    assert done.code == 130
    assert done.words.startswith("error[interrupted]: SIGINT to mpilaunch before attempt 2\n")
    causes = [found["cause"] for found in json.loads((tmp_path / "r.json").read_text())["attempts"]]
    assert causes == ["rank-failed", "interrupted"]


def test_an_interrupt_in_a_later_attempt_ends_the_job(tmp_path: Path) -> None:
    program = sh("echo >up-$MPILAUNCH_RESTART_COUNT; [ $MPILAUNCH_RESTART_COUNT = 1 ] || exit 3; exec sleep 600")
    with launching("-np", "1", "--max-restarts", "9", *program, cwd=tmp_path) as process:
        wait_for_files(tmp_path / "up-1")
        process.send_signal(signal.SIGINT)
        done = finish(process)
    assert done.code == 130
    assert "error[interrupted]: SIGINT to mpilaunch\n" in done.words
    assert "attempt 3" not in done.words


def test_an_interrupt_while_a_failed_attempt_ends_is_not_forgotten(tmp_path: Path) -> None:
    stay = "trap 'echo >asked' TERM; echo >up; while :; do sleep 0.01; done"
    program = sh(f"if [ $RANK = 1 ]; then {stay}; fi; while [ ! -s up ]; do sleep 0.01; done; exit 3")
    with launching("-np", "2", "--max-restarts", "9", "--report", "r.json", *program, cwd=tmp_path) as process:
        wait_for_files(tmp_path / "asked")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGHUP)
        done = finish(process)
    assert (done.code, (tmp_path / "up").read_text()) in ((129, "\n"), (130, "\n"))
    assert " to mpilaunch before attempt 2\n" in done.words
    attempts = json.loads((tmp_path / "r.json").read_text())["attempts"]
    assert [(found["restart"], found["cause"]) for found in attempts] == [(0, "rank-failed"), (1, "interrupted")]


def test_an_interrupt_ends_the_discovery_script(tmp_path: Path) -> None:
    # That nothing is left of it, the check around every test sees.
    script = "echo $$ >asking; setsid sleep 0; sleep 600"
    arguments = ("-H", "local", "--max-restarts", "1", "--host-discovery-script", script)
    with launching(*arguments, *sh("exit 3"), cwd=tmp_path) as process:
        wait_for_files(tmp_path / "asking")
        process.send_signal(signal.SIGINT)
        assert finish(process).code == 130


def test_a_discovery_script_that_fails_changes_nothing() -> None:
    program = sh("[ $MPILAUNCH_RESTART_COUNT = 1 ] && echo well")
    for script in ("exit 4", "true", "echo 'a:b:c:d'"):
        done = launch("-H", "local", "--max-restarts", "1", "--host-discovery-script", script, *program)
        assert (done.code, done.out) == (0, b"well\n")
        assert "note: --host-discovery-script: " in done.words and "; the hosts stay as they were" in done.words


def test_a_host_that_was_not_found_stays_away_when_the_script_fails_later(tmp_path: Path) -> None:
    names = ["localhost", "127.0.0.1"]
    script = f"[ ! -e asked ] || exit 4; touch asked; echo {names[0]}"
    program = sh("[ $MPILAUNCH_RESTART_COUNT = 2 ]")
    words = ("-H", ",".join(names), "--nnodes", "1:2", "--max-restarts", "2", "--report", "r.json")
    assert launch(*words, "--host-discovery-script", script, *program, cwd=tmp_path).code == 0
    attempts = json.loads((tmp_path / "r.json").read_text())["attempts"]
    assert [found["nodes"] for found in attempts] == [names, names[:1], names[:1]]


def test_a_file_on_stdin_is_read_from_its_start_again(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("one\ntwo\n")
    with open(tmp_path / "input", "rb") as file:
        done = launch("-np", "1", "--max-restarts", "1", *sh("cat; exit $((1 - MPILAUNCH_RESTART_COUNT))"), stdin=file)
    assert (done.code, done.out) == (0, b"one\ntwo\n" * 2)


def test_quiet_restarts_say_nothing() -> None:
    done = launch("-q", "-np", "1", "--max-restarts", "1", *sh("exit $((1 - MPILAUNCH_RESTART_COUNT))"))
    assert (done.code, done.words) == (0, "")


def test_a_preemption_has_its_own_cause_and_the_second_one_changes_nothing(tmp_path: Path) -> None:
    program = sh("trap 'sleep 1; echo saved; exit 0' TERM; echo >up-0-$RANK; while :; do sleep 0.01; done")
    with launching("-np", "1", "--grace", "5", "--report", "r.json", *program, cwd=tmp_path) as process:
        wait_for_files(tmp_path / "up-0-0")
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        done = finish(process)
    assert (done.code, done.out) == (143, b"saved\n")
    assert json.loads((tmp_path / "r.json").read_text())["verdict"]["cause"] == "preempted"
