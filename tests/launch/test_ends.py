"""How real launches end: the exit code, the report, and that no process outlives the job, whoever is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.failures import LIMITS, NODES, RANKS, SIGNALS, STRAYS, proves
from tests.support.launching import (
    LIMIT,
    MPILAUNCH,
    children,
    environment,
    finish,
    guard_and_daemon,
    kill_hard,
    launch,
    launching,
    living,
    script,
    sh,
    state,
    stopped,
    wait_for_files,
    wait_gone,
    wait_until,
)

STAY = "exec 2> /dev/null; echo $$ > pid-$RANK; while :; do sleep 0.05; done"
"""A rank that tells its process id and stays, and that takes a trap at once; its shell does not say what was killed."""


def pids(folder: Path, *names: str) -> list[int]:
    """Wait for files with process ids, and return these."""
    return [int(text) for text in wait_for_files(*(folder / name for name in names))]


# The exit code and the report


@pytest.mark.parametrize(
    ("program", "code", "how"),
    [
        ("exit 3", 3, "exited with code 3"),
        ("exit 255", 255, "exited with code 255"),
        ("kill -SEGV $$", 139, r"killed by SIGSEGV \(signal 11\)(, core dumped)?"),
        ("kill -ABRT $$", 134, r"killed by SIGABRT \(signal 6\)(, core dumped)?"),
        ("kill -BUS $$", 135, r"killed by SIGBUS \(signal 7\)(, core dumped)?"),
        ("kill -KILL $$", 137, r"killed by SIGKILL \(signal 9\)"),
        ("kill -TERM $$", 143, r"killed by SIGTERM \(signal 15\)"),
        ("kill -PIPE $$", 141, r"killed by SIGPIPE \(signal 13\)"),
        ("exit 141", 141, "exited with code 141"),
    ],
)
@proves(
    "rank-exits", RANKS, "a rank exits with a code other than 0", finder="its daemon, at once",
    says="`rank 2 on local exited with code 3 after 0.1 s`", code="the rank's", within=10,
)  # fmt: skip
@proves(
    "rank-signal", RANKS, "a rank is killed by SEGV, ABRT, BUS, KILL or TERM", finder="its daemon, at once",
    says="`rank 2 on local killed by SIGSEGV (signal 11), core dumped`", code="128 + N", within=10,
)  # fmt: skip
def test_the_code_of_the_rank_that_failed(program: str, code: int, how: str) -> None:
    done = launch("-H", "local:2,local:2", *sh(f"ulimit -c 0; if [ $RANK = 2 ]; then {program}; fi; sleep 100"))
    assert done.code == code
    assert re.match(rf"error\[rank-failed\]: rank 2 on local\b:? {how} ", done.words)
    assert "\n    ranks 0-1,3 stopped after it\n" in done.words


def test_the_first_failure_gives_the_code_and_the_report(tmp_path: Path) -> None:
    program = """
        case $RANK in
        0) exit 0;;
        1) while [ ! -e go ]; do sleep 0.01; done; echo 'cause of it' >&2; printf 'without newline' >&2; exit 7;;
        *) trap 'exit 9' TERM; echo ready > ready-$RANK; touch go-$RANK; while :; do sleep 0.05; done;;
        esac
    """
    with launching("-np", "4", *sh(program), cwd=tmp_path) as process:
        wait_for_files(tmp_path / "ready-2", tmp_path / "ready-3")
        (tmp_path / "go").touch()
        done = finish(process)
    assert done.code == 7
    report = done.words[done.words.index("error[") :].splitlines()
    assert report[0].startswith("error[rank-failed]: rank 1 on localhost exited with code 7")
    assert report[1:] == [
        "    its last lines on stderr:",
        "    | cause of it",
        "    | without newline",
        "    ranks 2-3 stopped after it",
        "    rank 0 had succeeded",
    ]


def test_the_report_has_the_last_lines_only() -> None:
    count = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line $i; done >&2"
    done = launch("-np", "2", *sh(f"[ $RANK = 0 ] || exec sleep 100; {count}; exit 1"))
    shown = [line for line in done.words.splitlines() if line.startswith("    | ")]
    assert shown == [f"    | line {number}" for number in range(2989, 3001)]


def test_escapes_of_a_rank_do_not_reach_the_terminal_through_the_report() -> None:
    done = launch("-np", "1", *sh(r"printf '\033[2J\033]0;title\007bad\n' >&2; exit 1"))
    report = done.words[done.words.index("error[") :]
    assert "bad" in report and "\x1b" not in report and "\x07" not in report


@proves(
    "ranks-fail-together", RANKS, "two ranks fail at the same time", finder="their daemons' clocks",
    says="`rank 1 on localhost failed too: exited with code 2`", code="that of the earlier", within=10,
)  # fmt: skip
def test_ranks_that_fail_by_themselves_are_distinguished_from_the_stopped(tmp_path: Path) -> None:
    # Both leave together; the second has ended before it could be told to.
    program = "echo $$ > pid-$RANK; while [ ! -e go ]; do :; done; [ $RANK = 2 ] && exec sleep 100; exit $((RANK + 1))"
    with launching("-np", "3", *sh(program), cwd=tmp_path) as process:
        _, daemon = guard_and_daemon(process.pid)
        ranks = pids(tmp_path, "pid-0", "pid-1", "pid-2")
        os.kill(daemon, signal.SIGSTOP)
        (tmp_path / "go").touch()
        wait_until(lambda: [state(pid) for pid in ranks].count("Z") == 2, "two ranks have ended")
        os.kill(daemon, signal.SIGCONT)
        done = finish(process)
    assert done.code in (1, 2)
    first = done.code - 1
    assert f"rank {first} on localhost exited with code {first + 1}" in done.words
    assert f"rank {1 - first} on localhost failed too: exited with code {2 - first}" in done.words
    assert "rank 2 stopped after it" in done.words


def test_all_well_is_silent() -> None:
    done = launch("-np", "3", "true")
    assert (done.code, done.out, done.err) == (0, b"", b"")


# What ranks leave behind


LEFT = {
    "in the background": "sleep 1000 &",
    "in a session of its own": "setsid sleep 1000 &",
    "after two forks": "( ( sleep 1000 & ) & )",
    "without environment": "( setsid env -i /bin/sleep 1000 & )",
    "deaf to signals": "( trap '' TERM INT HUP; sleep 1000 ) &",
    "without our output": "setsid sh -c 'trap \"\" TERM; sleep 1000' > /dev/null 2>&1 &",
    "under nohup": "nohup sleep 1000 > /dev/null 2>&1 &",
    "stopped": "sh -c 'kill -STOP $$; sleep 1000' &",
}


@pytest.mark.parametrize("code", [0, 5])
@proves(
    "left-behind", STRAYS,
    "children in the background, in own sessions, after two forks, without environment, ignoring SIGTERM, stopped, ...",
    finder="their daemon, by descent",
    says="`warning: localhost: ended process 4711 (sleep), left behind by its rank`", code="the ranks'", within=10,
)  # fmt: skip
def test_what_ranks_leave_behind_is_gone_with_the_job(tmp_path: Path, code: int) -> None:
    for rank, leave in enumerate(LEFT.values()):
        script(tmp_path / f"leave-{rank}", f"#!/bin/sh\n{leave}\nsleep 0.2\necho out\nexit {code}\n")
    words = ["-np", str(len(LEFT)), "--oversubscribe", "--grace", "0.5"]
    # `launch` itself sees that nothing is left.
    done = launch(*words, *sh("exec ./leave-$RANK"), cwd=tmp_path)
    assert done.code == code
    if code == 0:
        assert done.out == b"out\n" * len(LEFT)
        assert done.words.count("left behind by its rank") >= len(LEFT)


def test_a_process_with_an_empty_environment_is_gone_too(tmp_path: Path) -> None:
    program = "setsid env -i /bin/sh -c 'echo $$ > stray; exec /bin/sleep 1000' & while [ ! -s stray ]; do sleep 0.01; done"
    done = launch("-np", "1", *sh(program), cwd=tmp_path)
    (stray,) = pids(tmp_path, "stray")
    assert done.code == 0 and not living(stray)
    assert f"warning: localhost: ended process {stray} (sleep), left behind by its rank" in done.words


def test_output_of_what_a_rank_left_behind_is_taken_while_it_writes(tmp_path: Path) -> None:
    done = launch("-np", "1", *sh("( for i in 1 2 3 4 5; do sleep 0.1; echo late $i; done ) & echo first"))
    assert done.out.decode().split("\n")[:2] == ["first", "late 1"]


@pytest.mark.parametrize(("option", "stays"), [("--mpi=none", False), ("--leave-running", True), ("--independent", True)])
def test_only_where_it_may_it_stays(tmp_path: Path, option: str, stays: bool) -> None:
    stray = "echo $$ > stray; while [ ! -e go ]; do sleep 0.02; done; touch lived"
    program = f"setsid sh -c '{stray}' > /dev/null 2>&1 & while [ ! -s stray ]; do sleep 0.01; done"
    try:
        command = [*MPILAUNCH, option, "--wdir", ".", "-np", "1", *sh(program)]
        done = subprocess.run(command, env=environment(), cwd=tmp_path, timeout=LIMIT)
        (pid,) = pids(tmp_path, "stray")
        assert (done.returncode, living(pid)) == (0, stays)
    finally:
        (tmp_path / "go").touch()
    wait_until(lambda: not living(pid), "the end of what was left")
    assert (tmp_path / "lived").exists() == stays


@proves(
    "other-job", STRAYS, "another job on this machine fails", finder="", says="nothing: this job lives on",
    code="that of each", within=10,
)  # fmt: skip
def test_another_job_beside_it_is_left_alone(tmp_path: Path) -> None:
    with launching("-np", "1", *sh(STAY), cwd=tmp_path) as process:
        (rank,) = pids(tmp_path, "pid-0")
        with launching("-np", "2", *sh("sleep 1000 & exit 1")) as other:
            assert finish(other).code == 1
        assert living(rank) and process.poll() is None
        process.terminate()
        assert finish(process).code == 143


# Who is killed


@pytest.mark.parametrize("victim", ["head", "daemon", "guard"])
@pytest.mark.parametrize("stubborn", [False, True], ids=["", "stubborn"])
def test_nothing_is_left_when_one_of_ours_is_killed(tmp_path: Path, victim: str, stubborn: bool) -> None:
    trap = "trap '' TERM INT HUP; " if stubborn else ""
    program = sh(f"{trap}setsid sh -c 'echo $$ > stray-'$RANK'; sleep 1000' & {STAY}")
    with launching("-np", "2", *program, cwd=tmp_path) as process:
        ranks = pids(tmp_path, "pid-0", "pid-1", "stray-0", "stray-1")
        guard, daemon = guard_and_daemon(process.pid)
        kill_hard({"head": process.pid, "daemon": daemon, "guard": guard}[victim])
        if victim != "head":
            done = finish(process)
            assert done.code == 125
            assert done.words.startswith("error[node-lost]: localhost: lost: ")
            assert "ranks 0-1 stopped" in done.words
        wait_gone(guard, daemon, *ranks)


def test_a_node_that_is_lost_ends_the_others(tmp_path: Path) -> None:
    with launching("-H", "local:1,local:2", *sh(STAY), cwd=tmp_path) as process:
        ranks = pids(tmp_path, "pid-0", "pid-1", "pid-2")
        daemon_of = {rank: int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1]) for rank in ranks}
        kill_hard(daemon_of[ranks[0]])
        done = finish(process)
    assert done.code == 125
    wait_gone(*ranks)


def test_a_daemon_that_is_frozen_is_given_up_and_killed_with_its_ranks(tmp_path: Path) -> None:
    program = sh(f"trap '' TERM; setsid sh -c 'echo $$ > stray; exec sleep 1000' & {STAY}")
    files = tmp_path / "files"
    files.mkdir()
    with launching("-np", "1", "--heartbeat", "0.5", *program, cwd=tmp_path, env={"TMPDIR": str(files)}) as process:
        ranks = pids(tmp_path, "pid-0", "stray")
        guard, daemon = guard_and_daemon(process.pid)
        os.kill(daemon, signal.SIGSTOP)
        done = finish(process)
        assert done.code == 125
        assert "no sign of life for" in done.words
        # Nobody continues it.
        wait_gone(guard, daemon, *ranks)
        assert not list(files.iterdir())


def test_a_daemon_that_is_frozen_when_its_head_is_killed_leaves_nothing(tmp_path: Path) -> None:
    with launching("-np", "1", "--heartbeat", "0.5", *sh(STAY), cwd=tmp_path) as process:
        (rank,) = pids(tmp_path, "pid-0")
        guard, daemon = guard_and_daemon(process.pid)
        os.kill(daemon, signal.SIGSTOP)
        kill_hard(process.pid)
        wait_gone(guard, daemon, rank)


# Signals


@pytest.mark.parametrize(
    ("number", "got"),
    [(signal.SIGINT, "INT"), (signal.SIGTERM, "TERM"), (signal.SIGHUP, "TERM")],
    ids=lambda value: str(value),
)
@proves(
    "interrupt", SIGNALS, "Ctrl-C, SIGTERM, SIGHUP to mpilaunch", finder="the head",
    says="`SIGINT to mpilaunch: the ranks have 10 s to end; once more kills them now`", code="128 + N", within=10,
)  # fmt: skip
def test_a_signal_ends_the_job(tmp_path: Path, number: signal.Signals, got: str) -> None:
    program = f"for s in INT TERM HUP; do trap \"echo $s; exit 0\" $s; done; {STAY}"
    with launching("-np", "2", *sh(program), cwd=tmp_path) as process:
        pids(tmp_path, "pid-0", "pid-1")
        process.send_signal(number)
        done = finish(process)
    assert (done.code, done.lines) == (128 + number, [got, got])
    cause, again = ("preempted", "SIGINT") if number == signal.SIGTERM else ("interrupted", "once more")
    assert f"error[{cause}]: {number.name} to mpilaunch\n" in done.words
    assert f"10 s to end; {again} kills them now" in done.words


@proves(
    "interrupt-twice", SIGNALS, "Ctrl-C twice", finder="the head", says="`error[interrupted]: SIGINT to mpilaunch`",
    code="130", within=10,
)  # fmt: skip
def test_the_second_interrupt_kills_at_once(tmp_path: Path) -> None:
    with launching("-np", "2", *sh(f"trap 'echo again >> got-$RANK' INT TERM; {STAY}"), cwd=tmp_path) as process:
        ranks = pids(tmp_path, "pid-0", "pid-1")
        process.send_signal(signal.SIGINT)
        wait_for_files(tmp_path / "got-0", tmp_path / "got-1")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        done = finish(process)
    assert done.code == 130
    assert time.monotonic() - began < 4, "the grace time is 10 s"
    wait_gone(*ranks)


def test_a_node_that_does_not_answer_holds_up_no_second_interrupt(tmp_path: Path) -> None:
    with launching("-np", "1", *sh(STAY), cwd=tmp_path) as process:
        (rank,) = pids(tmp_path, "pid-0")
        guard, daemon = guard_and_daemon(process.pid)
        os.kill(daemon, signal.SIGSTOP)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        done = finish(process)
        wait_gone(guard, daemon, rank)
    assert time.monotonic() - began < 20, "silence would be noticed after 30 s"
    assert done.code in (130, 143)
    assert re.search(r"error\[(interrupted|preempted)\]: ", done.words)


@proves(
    "interrupt-start", SIGNALS, "Ctrl-C during the start", finder="the head",
    says="`SIGINT to mpilaunch during the start: no rank was started`", code="130", within=10,
)  # fmt: skip
def test_an_interrupt_during_the_start_starts_nothing(tmp_path: Path) -> None:
    with launching("--agent", "fake", "-H", "node1,timeout1", *sh("touch ran-$RANK"), cwd=tmp_path) as process:
        guard_and_daemon(process.pid)
        process.send_signal(signal.SIGINT)
        done = finish(process)
    assert done.code == 130
    assert done.words == "error[interrupted]: SIGINT to mpilaunch during the start: no rank was started\n"
    assert not list(tmp_path.iterdir())


@proves(
    "nohup", SIGNALS, "SIGHUP under `nohup`", finder="nobody", says="nothing", code="0", within=10,
)  # fmt: skip
def test_who_is_started_with_hangups_ignored_ignores_them(tmp_path: Path) -> None:
    words = " ".join(MPILAUNCH)
    command = f"trap '' HUP; exec {words} -np 1 sh -c 'echo $$ > pid-0; while [ ! -e go ]; do sleep 0.01; done; echo well'"
    with subprocess.Popen(["sh", "-c", command], env=environment(), cwd=tmp_path, stdout=subprocess.PIPE) as process:
        pids(tmp_path, "pid-0")
        process.send_signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        assert finish(process).out == b"well\n"
    assert process.returncode == 0


@pytest.mark.parametrize("name", ["USR1", "USR2"])
@proves(
    "user-signals", SIGNALS, "SIGUSR1, SIGUSR2", finder="every rank", says="what the ranks say", code="0", within=10,
)  # fmt: skip
def test_user_signals_go_to_every_rank(tmp_path: Path, name: str) -> None:
    with launching("-np", "2", *sh(f"trap 'echo {name}; exit 0' {name}; {STAY}"), cwd=tmp_path) as process:
        pids(tmp_path, "pid-0", "pid-1")
        process.send_signal(getattr(signal, f"SIG{name}"))
        done = finish(process)
    assert (done.code, done.lines, done.err) == (0, [name, name], b"")


@proves(
    "suspend", SIGNALS, "Ctrl-Z, and later `fg`", finder="every rank stops and continues; no time limit runs out",
    says="nothing", code="0", within=10,
)  # fmt: skip
def test_a_stopped_job_stops_its_ranks_and_continues_with_them(tmp_path: Path) -> None:
    program = "echo $$ > pid-$RANK; while [ ! -e go ]; do sleep 0.01; done; echo went on"
    with launching("-np", "2", "--heartbeat", "0.5", *sh(program), cwd=tmp_path) as process:
        ranks = pids(tmp_path, "pid-0", "pid-1")
        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: all(map(stopped, (process.pid, *ranks))), "all are stopped")
        (tmp_path / "go").touch()
        since = time.monotonic()
        # Longer than any silence limit of this job: four heartbeat limits.
        wait_until(lambda: time.monotonic() - since > 2.2, "some time")
        assert all(map(stopped, ranks))
        process.send_signal(signal.SIGCONT)
        done = finish(process)
    assert (done.code, done.out, done.err) == (0, b"went on\nwent on\n", b"")


@pytest.mark.parametrize("frozen", ["head", "all"])
def test_ranks_that_say_nothing_after_a_freeze_continue(tmp_path: Path, frozen: str) -> None:
    program = "echo $$ > pid-$RANK; while [ ! -e go ]; do sleep 0.01; done; echo went on"
    with launching("-np", "1", "--heartbeat", "0.5", *sh(program), cwd=tmp_path) as process:
        pids(tmp_path, "pid-0")
        guard, daemon = guard_and_daemon(process.pid)
        asleep = (process.pid, guard, daemon) if frozen == "all" else (process.pid,)
        for pid in asleep:
            os.kill(pid, signal.SIGSTOP)
        # The daemon ends its ranks after four heartbeat limits without its head, if it has lived through them.
        time.sleep(3.5 if frozen == "all" else 1.2)
        for pid in asleep:
            os.kill(pid, signal.SIGCONT)
        time.sleep(1)  # beats come and go meanwhile
        (tmp_path / "go").touch()
        done = finish(process)
    assert (done.code, done.out, done.err) == (0, b"went on\n", b"")


def test_whoever_ignores_or_blocks_the_end_of_children_does_not_matter(tmp_path: Path) -> None:
    for odd in ("signal(signal.SIGCHLD, signal.SIG_IGN)", "pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])"):
        start = f"import os, signal, sys; signal.{odd}; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
        argv = [sys.executable, "-c", start, "-m", "mpilaunch", "-H", "local:1,local:1", *sh("exit $((RANK * 3))")]
        done = subprocess.run(argv, env=environment(), capture_output=True, timeout=20, check=False)
        assert (done.returncode, b"rank 1 on local exited with code 3" in done.stderr) == (3, True)
        argv[5:] = ["-np", "1", *sh(f"echo $PPID >{tmp_path}/daemon; echo $$ >{tmp_path}/rank; exec sleep 100")]
        with subprocess.Popen(argv, env=environment(), stderr=subprocess.PIPE) as process:
            daemon, rank = pids(tmp_path, "daemon", "rank")
            os.kill(daemon, signal.SIGKILL)
            _, told = process.communicate(timeout=20)
            assert (process.returncode, b"Traceback" in told) == (125, False)
            wait_gone(rank)
        for name in ("daemon", "rank"):
            (tmp_path / name).unlink()


# Time limits


@proves(
    "timeout", LIMITS, "`--timeout` is exceeded", finder="the head", says="`error[timeout]: time limit of 0.3 s exceeded`",
    code="124", within=10,
)  # fmt: skip
def test_the_time_limit(tmp_path: Path) -> None:
    # One that starts processes again and again is, for a moment, blocked in the kernel.
    began = time.monotonic()
    done = launch("-np", "2", "--timeout", "0.3", *sh("trap 'echo told; exit 0' TERM; sleep 1000 & wait"), cwd=tmp_path)
    assert time.monotonic() - began > 0.3
    assert (done.code, done.lines) == (124, ["told", "told"])
    first, *lines = done.words.splitlines()
    assert first == "error[timeout]: time limit of 0.3 s exceeded"
    assert all(re.match("    ranks? [01].* on localhost: (idle|busy).*, no output for [0-9]+ s$", line) for line in lines[:-1])
    assert lines[-1] == "    ranks 0-1 had succeeded"


def test_the_time_limit_tells_what_ranks_do(tmp_path: Path) -> None:
    does = "case $RANK in 1) while :; do :; done;; 2) kill -STOP $$;; *) sleep 300; true;; esac"
    done = launch("-H", "local:2,local:1", "--timeout", "2", *sh(does), cwd=tmp_path)
    assert done.code == 124
    first, *lines, last = done.words.splitlines()
    assert (first, last) == ("error[timeout]: time limit of 2 s exceeded", "    ranks 0-2 stopped")
    told = sorted(re.sub(", no output for [0-9]+ s$", "", line.strip()) for line in lines)
    told[1] = told[1].replace("a part of a CPU", "a CPU")  # where other tests take the rest
    assert told == [
        "rank 0 on local: idle, waits in hrtimer_nanosleep",
        "rank 1 on local: busy on a CPU",
        "rank 2 on local: stopped by a signal; kill -CONT lets it continue",
    ]


def test_the_time_limit_tells_the_line_of_each_rank_of_python(tmp_path: Path) -> None:
    """Behind a shell too; one that handles SIGTERM saves what it has to save, and is told as well."""
    (tmp_path / "train.py").write_text(TRAIN)
    options = ("-H", "local:2,local:2", "--timeout", "3", "--report", "report.json")
    done = launch(*options, "sh", "-c", f"{sys.executable} train.py; exit 0", cwd=tmp_path)
    assert (done.code, done.lines) == (124, ["saved"])
    lines = done.words.splitlines()
    told = [re.sub(", no output for .*", "", line.strip()) for line in lines[lines.index(TOLD) + 1 :]]
    assert told[:3] == [
        "rank 2 on local: in load_batch (train.py:6)",
        "rank 3 on local: in <module> (train.py:12)",
        "ranks 0-1 on local: in wait (train.py:13)",
    ]
    verdict = json.loads((tmp_path / "report.json").read_text())["verdict"]
    assert "rank 2 on local: in load_batch (train.py:6)" in verdict["detail"]


def test_the_reason_of_an_abort_is_shown_before_its_stack(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ABORTS)
    done = launch("-np", "2", sys.executable, "train.py", cwd=tmp_path)
    assert done.code == 134
    shown = done.words[done.words.rindex("error[rank-failed]") :]
    places = [shown.index(text) for text in ("what():  the reason", "Fatal Python error: Aborted", "line 5 in fail")]
    assert places == sorted(places), shown


ABORTS = """\
import os, sys, threading
def wait(depth):
    wait(depth - 1) if depth else threading.Event().wait()
def fail():
    os.abort()
for _ in range(3):
    threading.Thread(target=wait, args=(30,), daemon=True).start()
print("what():  the reason", file=sys.stderr)
fail()
"""
TOLD = "error[timeout]: time limit of 3 s exceeded"
TRAIN = """\
import os, signal, sys, threading, time

rank = int(os.environ["RANK"])

def load_batch():
    time.sleep(300)

if rank == 2:
    load_batch()
if rank == 3:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("saved")))
    time.sleep(300)
threading.Event().wait()
"""


def test_a_job_within_its_time_limit_is_not_touched() -> None:
    assert launch("-np", "2", "--timeout", "20", "true").code == 0


@proves(
    "grace", LIMITS, "a rank ignores SIGTERM", finder="its daemon, after `--grace`",
    says="the failure that ended the job", code="that of the first", within=10,
)  # fmt: skip
def test_after_the_grace_time_a_rank_is_killed(tmp_path: Path) -> None:
    began = time.monotonic()
    program = "[ $RANK = 0 ] && sleep 0.2 && exit 4; trap '' TERM; while :; do sleep 0.02; done"
    done = launch("-np", "2", "--grace", "0.3", *sh(program))
    seconds = time.monotonic() - began
    assert done.code == 4 and "rank 1 stopped after it" in done.words
    assert 0.5 <= seconds < 5


HOLD = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE = 0x4206
sys.exit(libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None) or print("held", flush=True) or time.sleep(float(sys.argv[2])))
"""
"""Be a debugger of a process for a while: it is not gone before, whatever kills it."""


@pytest.mark.testbed  # as root: others may not debug what is no child of theirs (Yama)
def test_the_end_of_a_rank_that_is_slow_to_go_is_reported(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("-np", "2", "--timeout", "2", "--grace", "0.2", "--report", report)
    with launching(*words, *sh(STAY), cwd=tmp_path) as process:
        (rank, _) = pids(tmp_path, "pid-0", "pid-1")
        hold = subprocess.Popen([sys.executable, "-c", HOLD, str(rank), "5"], stdout=subprocess.PIPE)
        with hold:
            assert hold.stdout is not None and hold.stdout.readline() == b"held\n"
            done = finish(process)
            assert hold.wait() == 0
    lines = done.words.splitlines()
    assert (done.code, lines[0], lines[-1]) == (124, "error[timeout]: time limit of 2 s exceeded", "    ranks 0-1 stopped")
    # A debugger is asked before SIGTERM acts.
    assert [one["signal"] for one in json.loads(report.read_text())["ranks"]] == [9, 15]


UNREAD = "echo $$ > pid-0; head -c 300000 /dev/zero"
"""More than a pipe holds, and less than may be on its way: the rank has gone before anybody has read it."""


@pytest.mark.parametrize("streams", [{}, {"stderr": subprocess.STDOUT}], ids=["apart", "one pipe"])
@pytest.mark.parametrize(("program", "code"), [("exit 0", 143), ("exit 7", 7)])
def test_a_signal_ends_a_job_whose_output_nobody_reads(
    tmp_path: Path, streams: dict[str, Any], program: str, code: int
) -> None:
    with launching("-np", "1", *sh(f"{UNREAD}; {program}"), cwd=tmp_path, **streams) as process:
        wait_gone(*pids(tmp_path, "pid-0"))
        wait_until(lambda: not children(process.pid), "all has gone but mpilaunch")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == code
        if not streams:
            assert process.stderr is not None
            assert process.stderr.read().startswith(b"warning: unread output was not printed\nerror[")


@pytest.mark.parametrize("end", ["0", "7"])
def test_a_time_limit_ends_a_job_whose_output_nobody_reads(tmp_path: Path, end: str) -> None:
    with launching("-np", "1", "--timeout", "1", *sh(f"{UNREAD}; exit {end}"), cwd=tmp_path) as process:
        assert process.wait(10) == (124 if end == "0" else 7)


@pytest.mark.slow
def test_a_time_limit_ends_ranks_that_wait_for_a_reader(tmp_path: Path) -> None:
    with launching("-np", "2", "--timeout", "1", "--grace", "0.3", "yes", cwd=tmp_path) as process:
        assert process.wait(20) == 124
        assert not children(process.pid)


def test_a_reader_that_reads_gets_all_also_after_a_signal(tmp_path: Path) -> None:
    with launching("-np", "1", *sh(UNREAD), cwd=tmp_path) as process:
        wait_gone(*pids(tmp_path, "pid-0"))
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None and len(process.stdout.read()) == 300000
        assert process.wait(10) == 143


# Keeping going


@proves(
    "continue", RANKS, "ranks fail under `--continue-on-error`", finder="its daemon, at once",
    says="the first in full, the others folded: `ranks 3-4 on local failed too: exited with code 4`",
    code="that of the first", within=10,
)  # fmt: skip
def test_every_rank_runs_to_its_end_and_every_failure_is_reported(tmp_path: Path) -> None:
    program = """
        case $RANK in
        1) echo 'the first' >&2; exit 3;;
        2) while [ ! -e done-0 ]; do sleep 0.01; done; kill -SEGV $$;;
        3) while [ ! -e done-0 ]; do sleep 0.01; done; exit 4;;
        4) while [ ! -e done-0 ]; do sleep 0.01; done; exit 4;;
        *) sleep 0.5; touch done-$RANK;;
        esac
    """
    done = launch("--continue-on-error", "-H", "local:3,local:3", *sh(f"ulimit -c 0; {program}"), cwd=tmp_path)
    assert done.code == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["done-0", "done-5"]
    report = done.words[done.words.index("error[") :].splitlines()
    assert report[0].startswith("error[rank-failed]: rank 1 on local exited with code 3 after ")
    assert report[1:] == [
        "    its last lines on stderr:",
        "    | the first",
        "    rank 2 on local failed too: killed by SIGSEGV (signal 11)",
        "    ranks 3-4 on local failed too: exited with code 4",
        "    ranks 0,5 had succeeded",
    ]


@proves(
    "continue-lost", NODES, "a node is lost under `--continue-on-error`", finder="the head",
    says="`note: local: lost: its daemon ended with code 137; the other ranks continue`", code="125", within=10,
)  # fmt: skip
def test_a_lost_node_does_not_end_the_others_of_a_job_that_continues(tmp_path: Path) -> None:
    program = f"[ $RANK = 0 ] || {{ while [ ! -e go ]; do sleep 0.01; done; touch done-$RANK; exit $((RANK - 1)); }}; {STAY}"
    with launching("--continue-on-error", "-H", "local:1,local:2", *sh(program), cwd=tmp_path) as process:
        (rank,) = pids(tmp_path, "pid-0")
        kill_hard(int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1]))
        wait_gone(rank)
        (tmp_path / "go").touch()
        done = finish(process)
    assert done.code == 125
    assert (tmp_path / "done-1").exists() and (tmp_path / "done-2").exists()
    assert "note: local: lost: its daemon ended with code 137; the other ranks continue\n" in done.words
    assert "error[node-lost]: local: lost: its daemon ended with code 137\n" in done.words
    assert "    rank 2 on local failed too: exited with code 1\n    rank 0 stopped\n    rank 1 had succeeded\n" in done.words


@pytest.mark.parametrize("largest", [False, True])
def test_a_node_that_is_lost_later_does_not_hide_the_first_failure_of_a_job_that_continues(
    tmp_path: Path, largest: bool
) -> None:
    program = f"[ $RANK = 0 ] || {{ [ $RANK = 2 ] && exit 7; while [ ! -e go ]; do sleep 0.01; done; exit 0; }}; {STAY}"
    options = ("--continue-on-error", "--heartbeat", "0.5", *(("--exit-code", "largest") if largest else ()))
    with launching(*options, "-H", "local:1,local:2", *sh(program), cwd=tmp_path) as process:
        (rank,) = pids(tmp_path, "pid-0")
        time.sleep(1.5)  # the node has been heard since rank 2 failed
        kill_hard(int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1]))
        wait_gone(rank)
        (tmp_path / "go").touch()
        done = finish(process)
    assert done.code == (255 if largest else 7)
    assert "note: local: lost: its daemon ended with code 137; the other ranks continue\n" in done.words
    assert "error[rank-failed]: rank 2 on local exited with code 7 after " in done.words
    assert "    local lost after it\n" in done.words


def test_an_interrupt_ends_a_job_that_continues(tmp_path: Path) -> None:
    with launching("--continue-on-error", "-np", "3", *sh(f"[ $RANK = 0 ] && exit 3; {STAY}"), cwd=tmp_path) as process:
        ranks = pids(tmp_path, "pid-1", "pid-2")
        time.sleep(0.3)  # nothing tells that rank 0 has failed until the job ends
        process.send_signal(signal.SIGINT)
        done = finish(process)
    assert done.code == 130 and "rank 0 on localhost failed too: exited with code 3" in done.words
    wait_gone(*ranks)


# Many at once


SHARES = 20 if os.environ.get("TABLE") == "all" else 4


@pytest.mark.parametrize("_share", ["quick", *[pytest.param(share, marks=pytest.mark.slow) for share in range(SHARES)]])
@pytest.mark.timeout(220)
@proves(
    "at-once", RANKS, "64 ranks end at once, 50 times", finder="their daemons", says="nothing", code="0", within=200,
)  # fmt: skip
def test_64_ranks_that_end_at_once(_share: object) -> None:
    for _ in range(10 if _share == "quick" else 50):
        done = launch("-np", "64", "--oversubscribe", "-H", "local:32,local:32", *sh("echo $RANK"), limit=20)
        assert (done.code, done.err) == (0, b"")
        assert sorted(map(int, done.out.split())) == list(range(64))


@proves(
    "at-once-failing", RANKS, "64 ranks fail at once", finder="their daemons", says="one report of four lines", code="3",
    within=10,
)  # fmt: skip
def test_64_ranks_that_fail_at_once_are_one_report() -> None:
    done = launch("-np", "64", "--oversubscribe", "-H", "local:32,local:32", *sh("exit 3"))
    assert done.code == 3
    assert done.words.count("error[") == 1 and len(done.words.splitlines()) <= 4


@proves(
    "left-forking", STRAYS, "a chain of processes each of which starts the next and ends",
    finder="its daemon: until the kernel knows of no child", says="`warning: ...`", code="0", within=10,
)  # fmt: skip
def test_what_forks_on_and_on_is_gone(tmp_path: Path) -> None:
    # Each process starts the next and ends: who looks for descendants finds another one each time, or none.
    script(tmp_path / "runner", '#!/bin/sh\n[ $1 = 0 -o -e stop ] || setsid "$0" $(($1 - 1)) &\n')
    try:
        assert launch("-np", "1", *sh("./runner 1000 > /dev/null 2>&1 & sleep 0.05"), cwd=tmp_path).code == 0
    finally:
        (tmp_path / "stop").touch()
