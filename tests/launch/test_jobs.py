"""Running jobs seen from another process: listed, looked at, signalled, stopped for sure."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from mpilaunch.head.control.place import folders
from mpilaunch.head.control.requests import REQUEST
from mpilaunch.relay import HEADER
from tests.support.failures import SIGNALS, proves
from tests.support.hosts import Hosts
from tests.support.launching import (
    MPILAUNCH,
    Launched,
    children,
    finish,
    guard_and_daemon,
    kill_hard,
    launching,
    living,
    open_files,
    sh,
    wait_for_files,
    wait_gone,
    wait_until,
)

STAY = "exec 2> /dev/null; echo here; echo $$ > pid-$RANK; while [ ! -e go ]; do sleep 0.05; done; echo went on"

HOSTILE_SIGNALS: list[dict[str, Any]] = [
    {},
    {"signal": 0, "ranks": None},
    {"signal": 65, "ranks": None},
    {"signal": 10, "ranks": [[0, 1 << 62]]},
    {"signal": 10, "ranks": [[0, 1]] * 50_000},
    {"signal": 10, "ranks": [[1, 0], [0, 0]]},
    {"signal": 10, "ranks": [[-1, 0]]},
    {"signal": "10", "ranks": None},
]


def a_name() -> str:
    """Return a name that no other test gives its job."""
    return f"test-{uuid.uuid4()}"


def verb(*words: str) -> Launched:
    """Run a verb to its end."""
    with launching(*words) as process:
        return finish(process)


def answer(*words: str) -> Any:
    """Return what a verb prints as JSON."""
    done = verb(*words, "--json")
    assert done.code == 0, done.words
    return json.loads(done.out)


def listed(name: str) -> list[dict[str, Any]]:
    return [job for job in answer("jobs")["jobs"] if job.get("name") == name]


def sockets() -> list[str]:
    """Return the sockets of all heads."""
    return [os.path.join(folder, name) for folder in folders() if os.path.isdir(folder) for name in os.listdir(folder)]


def pids(folder: Path, count: int, name: str) -> list[int]:
    """Return the processes of ranks that have written their numbers, once the head knows that they run."""
    found = [int(text) for text in wait_for_files(*(folder / f"pid-{rank}" for rank in range(count)))]
    wait_until(lambda: any(job["state"] == "running" for job in listed(name)), "the head knows that they run")
    return found


def test_a_running_job_is_found_and_its_ranks_are_shown_with_the_odd_one_first(tmp_path: Path) -> None:
    name = a_name()
    for rank in range(3):
        os.mkfifo(tmp_path / f"fifo-{rank}")
    program = "echo here; echo $$ > pid-$RANK; read line < fifo-$RANK; echo $line"
    with launching("-np", "3", "--name", name, *sh(program), cwd=tmp_path) as process:
        ranks = pids(tmp_path, 3, name)
        (job,) = listed(name)
        assert (job["pid"], job["ranks"], job["state"], job["restart"]) == (process.pid, 3, "running", 0)
        assert job["nodes"] == ["localhost"] and job["program"][0].endswith("sh") and 0 <= job["silent"] <= job["age"]
        assert answer("jobs", job["id"])["job"]["id"] == job["id"]
        os.kill(ranks[1], signal.SIGSTOP)
        data = answer("jobs", name)
        assert data["ranks"][1]["how"].startswith("stopped by a signal") and data["ranks"][1]["pid"] == ranks[1]
        assert {row["last_line"] for row in data["ranks"]} == {"here"}
        assert all(row["memory"] > 1 << 16 and row["cpu_seconds"] >= 0 and row["alive"] for row in data["ranks"])
        lines = verb("jobs", name).out.decode().splitlines()
        assert lines[0].startswith(f"job {job['id']}: ") and lines[2].split()[:2] == ["1", "localhost"]
        os.kill(ranks[1], signal.SIGCONT)
        for rank in range(3):
            (tmp_path / f"fifo-{rank}").write_text("went on\n")
        done = finish(process)
    assert (done.code, done.lines) == (0, ["here"] * 3 + ["went on"] * 3)
    assert not listed(name)
    assert verb("jobs", name).words.startswith(f"error[job-unknown]: no job '{name}' of yours runs")


# Each rank blocks in one call, on the line on which it says that it is there: its stack is the same whenever it is taken.
WORKS = """
import os

def load_batch(fifo, here):
    print(os.getpid(), file=here, flush=True); os.open(
        fifo, os.O_RDONLY)

fifo, here = f"fifo-{os.environ['RANK']}", open(f"pid-{os.environ['RANK']}", "w")
if os.environ["RANK"] == "2":
    load_batch(fifo, here)
else:
    print(os.getpid(), file=here, flush=True); os.open(fifo, os.O_RDONLY)
print("went on", flush=True)
"""


def test_the_stacks_of_a_job_are_shown_and_it_continues(tmp_path: Path) -> None:
    name = a_name()
    (tmp_path / "work.py").write_text(WORKS)
    for rank in range(3):
        os.mkfifo(tmp_path / f"fifo-{rank}")
    words = ("-np", "3", "--name", name, sys.executable, "work.py", ":", "-np", "1", *sh(STAY))
    with launching(*words, cwd=tmp_path) as process:
        ranks = pids(tmp_path, 4, name)
        assert set(ranks) <= set(children(guard_and_daemon(process.pid)[1])), "as ptrace_scope 1 of Yama wants it"
        lines = verb("stack", name).out.decode().splitlines()
        odd = lines.index(next(line for line in lines if line.startswith("rank 2 on localhost: in load_batch (work.py:")))
        same = lines.index(next(line for line in lines if line.startswith("ranks 0-1 on localhost: in <module> (work.py:")))
        assert lines[odd + 1] == lines[same + 1] == "    Main thread (most recent call first):" and odd < same
        assert lines[odd + 2].endswith(" in load_batch")
        assert lines[same + 2].startswith(f'      File "{tmp_path}/work.py", line ')
        assert any(line.startswith("rank 3 on localhost: ") for line in lines), "what is not Python is told by the kernel"
        (row,) = answer("stack", name, "--ranks", "2")["ranks"]
        assert (row["rank"], row["processes"][0]["pid"]) == (2, ranks[2])
        assert [frame[2] for frame in row["processes"][0]["threads"][0]] == ["load_batch", "<module>"]
        assert re.match(r"error\[job-refused\]: job \w+: there is no rank 4", verb("stack", name, "--ranks", "3-4").words)
        for rank in range(3):
            (tmp_path / f"fifo-{rank}").write_text("")
        (tmp_path / "go").touch()
        done = finish(process)
    assert (done.code, sorted(done.lines)) == (0, ["here"] + ["went on"] * 4)


def test_a_signal_goes_to_the_chosen_ranks_only(tmp_path: Path) -> None:
    name, program = a_name(), f"trap 'echo $RANK got it' USR1; {STAY}"
    with launching("-np", "4", "--name", name, *sh(program), cwd=tmp_path) as process:
        pids(tmp_path, 4, name)
        assert verb("signal", name, "usr1", "--ranks", "0,2-3").out == b"SIGUSR1 sent to ranks 0,2-3\n"
        assert verb("signal", name, "USR1", "--ranks", "2-7").words.startswith("error[job-refused]: ")
        assert answer("signal", name, "18") == {"ranks": [0, 1, 2, 3]}  # SIGCONT
        (tmp_path / "go").touch()
        done = finish(process)
    assert done.code == 0
    assert [line for line in done.lines if "got" in line] == ["0 got it", "2 got it", "3 got it"]


def test_ranks_that_are_stopped_and_continued_by_it_do_not_stop_the_job(tmp_path: Path) -> None:
    name = a_name()
    for rank in range(2):
        os.mkfifo(tmp_path / f"fifo-{rank}")
    # Without children: a shell whose child is stopped before its exec is blocked, not stopped.
    program = "echo $$ > pid-$RANK; read line < fifo-$RANK"
    with launching("-np", "2", "--heartbeat", "0.5", "--name", name, *sh(program), cwd=tmp_path) as process:
        pids(tmp_path, 2, name)
        assert verb("signal", name, "STOP").code == 0
        assert [row["how"][:7] for row in answer("jobs", name)["ranks"]] == ["stopped"] * 2
        assert verb("signal", name, "CONT").code == 0
        for rank in range(2):
            (tmp_path / f"fifo-{rank}").write_text("go\n")
        assert finish(process).code == 0


@proves(
    "verb-stop", SIGNALS, "`mpilaunch stop JOB`", finder="the head", says="`error[interrupted]: mpilaunch stop by process`",
    code="143", within=10,
)  # fmt: skip
def test_stop_returns_when_every_process_is_gone(tmp_path: Path) -> None:
    name = a_name()
    program = f"setsid sh -c 'trap \"\" TERM; echo $$ > far-$RANK; exec sleep 100' & {STAY}"
    with launching("-np", "2", "--name", name, *sh(program), cwd=tmp_path) as process:
        ranks = pids(tmp_path, 2, name) + [int(text) for text in wait_for_files(tmp_path / "far-0", tmp_path / "far-1")]
        guard, daemon = guard_and_daemon(process.pid)
        told = verb("stop", name)
        assert not any(map(living, (*ranks, guard, daemon)))
        done = finish(process)
    assert told.code == 0 and told.out.endswith(b" has ended, with exit code 143: no process of it is left\n")
    assert done.code == 143
    assert "error[interrupted]: mpilaunch stop by process " in done.words and "ranks 0-1 stopped" in done.words


def test_stop_now_does_not_wait_for_ranks_that_ignore_signals(tmp_path: Path) -> None:
    name = a_name()
    with launching("-np", "1", "--name", name, *sh(f"trap '' TERM INT; {STAY}"), cwd=tmp_path) as process:
        (rank,) = pids(tmp_path, 1, name)
        assert answer("stop", name, "--now") == {"exit_code": 143, "cause": "interrupted", "lost": [], "swept": True}
        assert not living(rank)
        assert finish(process).code == 143


def test_stop_leaves_alone_what_an_independent_command_has_left_running(tmp_path: Path) -> None:
    name = a_name()
    far_away = f"setsid sh -c 'echo $$ > {tmp_path}/far; exec sleep 100' > /dev/null 2>&1 < /dev/null &"
    program = f"{far_away} echo $$ > {tmp_path}/near; wait"
    words = ("--independent", "-H", "unreachable1,localhost", "--remote-agent", "fake", "--name", name)
    with launching(*words, *sh(program), cwd=tmp_path) as process:
        near, far = (int(text) for text in wait_for_files(tmp_path / "near", tmp_path / "far"))
        told = verb("stop", name)
        assert not living(near) and living(far)
        os.kill(far, signal.SIGKILL)
        assert finish(process).code != 0
    assert told.code == 0, told.words
    assert told.out.endswith(b"; what its commands have left running is left alone\n")


def test_stop_during_the_start_starts_nothing(tmp_path: Path) -> None:
    name = a_name()
    with launching("--agent", "fake", "-H", "node1,timeout1", "--name", name, *sh("touch ran"), cwd=tmp_path) as process:
        wait_until(lambda: listed(name), "it is listed")
        assert [job["state"] for job in listed(name)] == ["starting"]
        assert verb("signal", name, "USR1").words.startswith("error[job-refused]: ")
        assert answer("stop", name)["cause"] == "interrupted"
        done = finish(process)
    assert done.code == 143 and "during the start: no rank was started" in done.words
    assert not list(tmp_path.iterdir())


def test_stop_between_two_attempts_ends_the_job(tmp_path: Path) -> None:
    name = a_name()
    with launching("-np", "1", "--max-restarts", "30", "--name", name, *sh("echo x >> ran; exit 3"), cwd=tmp_path) as process:
        wait_until(lambda: any(job["state"] == "restarting" for job in listed(name)), "it is between two attempts")
        told = answer("stop", name)
        done = finish(process)
    assert told["exit_code"] == done.code == 143
    assert "mpilaunch stop by process" in done.words


def test_a_head_that_is_stopped_is_reported_and_one_that_was_killed_is_not_listed(tmp_path: Path) -> None:
    name = a_name()
    with launching("-np", "1", "--name", name, *sh(STAY), cwd=tmp_path) as process:
        (rank,) = pids(tmp_path, 1, name)
        (job,) = listed(name)
        os.kill(process.pid, signal.SIGSTOP)
        told = verb("stop", job["id"][:12])
        assert told.words.startswith(f"error[job-silent]: the mpilaunch of job {job['id']} (process {process.pid}) has not")
        assert f"kill -CONT {process.pid}" in told.words and told.code == 1
        assert {"id": job["id"], "pid": process.pid, "state": "no answer"} in answer("jobs")["jobs"]
        kill_hard(process.pid)
        process.wait()
        wait_gone(rank)
    assert job["id"] not in verb("jobs").out.decode()
    assert job["id"] not in " ".join(sockets())


def test_a_head_that_is_killed_while_it_stops_the_job_is_reported(tmp_path: Path) -> None:
    name = a_name()
    with launching("-np", "1", "--name", name, *sh(f"trap 'touch asked' TERM; {STAY}"), cwd=tmp_path) as process:
        (rank,) = pids(tmp_path, 1, name)
        with launching("stop", name) as stopping:
            wait_until((tmp_path / "asked").exists, "the rank is asked to end")
            kill_hard(process.pid)
            told = finish(stopping)
        wait_gone(rank)
    assert told.code == 1 and told.words.startswith("error[job-gone]: the mpilaunch of job ")


def test_an_id_may_be_shortened_while_it_means_one_job(tmp_path: Path) -> None:
    name = a_name()
    with launching("-np", "1", "--name", name, *sh(STAY), cwd=tmp_path) as process:
        pids(tmp_path, 1, name)
        (job,) = listed(name)
        with launching("-np", "1", "--name", name, *sh("while [ ! -e go ]; do sleep 0.05; done"), cwd=tmp_path) as second:
            wait_until(lambda: len(listed(name)) == 2, "both are listed")
            told = verb("stop", name)
            assert told.code == 2 and told.words.startswith(f"error[job-ambiguous]: '{name}' means several jobs: ")
            assert answer("jobs", job["id"][:12])["job"]["pid"] == process.pid
            (tmp_path / "go").touch()
            assert finish(second).code == 0
        assert finish(process).code == 0


@pytest.mark.parametrize("who", ["head", "daemon"])
def test_a_look_ends_with_its_head_or_daemon(tmp_path: Path, who: str) -> None:
    name = a_name()
    with launching("-np", "2", "--name", name, "--reconnect-timeout", "0", *sh(STAY), cwd=tmp_path) as process:
        ranks = pids(tmp_path, 2, name)
        guard, daemon = guard_and_daemon(process.pid)
        os.kill(daemon, signal.SIGSTOP)  # so that the look is under way
        with launching("stack", name) as asking:
            wait_until(lambda: any("socket:" in file for file in open_files(asking.pid)), "it asks")
            time.sleep(0.3)
            os.kill(process.pid if who == "head" else daemon, signal.SIGKILL)
            told = finish(asking)
        if who == "head":
            os.kill(daemon, signal.SIGCONT)
        done = finish(process)
        wait_gone(*ranks, guard)
    if who == "head":
        assert told.code == 1 and told.words.startswith("error[job-gone]: the mpilaunch of job ")
    else:
        assert done.code == 125 and "error[node-lost]: localhost: lost: " in done.words
        assert (told.code, told.words) == (0, "") or told.words.startswith("error[job-")


def test_what_is_sent_to_the_socket_never_harms_the_job(tmp_path: Path) -> None:
    name, chance = a_name(), random.Random(7)
    with launching("-np", "2", "--name", name, *sh(STAY), cwd=tmp_path) as process:
        pids(tmp_path, 2, name)
        (job,) = listed(name)
        address = next(path for path in sockets() if job["id"] in path)
        requests = [b"{}", b"[]", b"null", b'{"request": []}', b'{"request": "ranks"', b"[" * 5000, os.urandom(300)]
        requests += [json.dumps({"request": "signal", **more}).encode() for more in HOSTILE_SIGNALS]
        frames = [HEADER.pack(REQUEST, len(data)) + data for data in requests]
        frames += [HEADER.pack(kind, 2) + b"{}" for kind in range(0, 256, 16)] + [struct.pack("!BI", REQUEST, 1 << 31), b"\x20"]
        frames += [chance.randbytes(chance.randrange(1, 200)) for _ in range(100)]
        for frame in frames:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(20)
                client.connect(address)
                client.sendall(frame)
                client.shutdown(socket.SHUT_WR)
                said = client.recv(4096)
                assert b'"error"' in said or said == b"", (frame, said)
        idle = [socket.socket(socket.AF_UNIX) for _ in range(40)]
        for client in idle:
            client.connect(address)
        assert len(answer("jobs", name)["ranks"]) == 2
        for client in idle:
            client.close()
        (tmp_path / "go").touch()
        done = finish(process)
    assert (done.code, done.err) == (0, b"")


def test_another_user_sees_no_job_of_ours(tmp_path: Path) -> None:
    name = a_name()
    with launching("-np", "1", "--name", name, *sh(STAY), cwd=tmp_path) as process:
        pids(tmp_path, 1, name)
        (job,) = listed(name)
        for folder in folders():
            seen = subprocess.run(["ls", folder], user=65534, group=65534, extra_groups=[], capture_output=True, check=False)
            assert job["id"].encode() not in seen.stdout
        (tmp_path / "go").touch()
        assert finish(process).code == 0


@pytest.mark.testbed
def test_stop_names_the_node_that_was_lost_meanwhile(hosts: Hosts, shared: Path) -> None:
    name, program = a_name(), "trap 'touch asked-$RANK' TERM; echo here; while :; do sleep 0.1; done"
    words = ("-H", "node[01-02]", "--wdir", str(shared), "--grace", "4", "--heartbeat", "1", "--name", name)
    argv = [*MPILAUNCH, *words, "--reconnect-timeout", "0", "sh", "-c", program]
    with hosts.popen(argv) as process:
        wait_until(lambda: listed(name) and listed(name)[0]["silent"] is not None, "its ranks run")
        with launching("stop", name, "--json") as stopping:
            wait_until((shared / "asked-1").exists, "they are asked to end")
            hosts.link("node02", up=False)
            try:
                told = finish(stopping)
                process.communicate(timeout=60)
            finally:
                hosts.link("node02", up=True)
    assert json.loads(told.out)["lost"] == ["node02"]
    assert told.code == 1 and "its connection to node02 was lost: processes of it may be left there" in told.words
