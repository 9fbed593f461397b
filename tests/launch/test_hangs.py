"""Jobs that hang: what their ranks do is shown on request, and after a time without output the job ends and tells it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from mpilaunch.daemon.ranks.reaper import process_file
from mpilaunch.job.hangs.autopsy import FENCED
from tests.support.failures import LIMITS, SIGNALS, proves
from tests.support.hosts import Hosts
from tests.support.launching import (
    MPILAUNCH,
    finish,
    launch,
    launching,
    living,
    sh,
    state,
    stopped,
    wait_for_files,
    wait_gone,
    wait_until,
)
from tests.support.nccl import SERVER
from tests.support.processes import everything
from tests.support.pythons import PYTHONS
from tests.support.terminals import terminal
from tests.support.torches import torch_on, torch_python

WAIT = "echo here; mkfifo fifo-$RANK; echo $$ > pid-$RANK; read line < fifo-$RANK; echo $line"
"""A rank that waits in the kernel for a line of its FIFO."""
STAY = "echo $$ > pid-$RANK; while [ ! -e go ]; do sleep 0.05; done; echo went on"
SLEEPER = """
import os, sys, time

def load_batch():
    time.sleep(100)

def train_step():
    while True: pass

print("begins", flush=True)
load_batch() if os.environ["RANK"] == "1" else train_step()
"""
TRAIN = """
import os, signal, sys, threading, time

print("begins", flush=True)
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def load_batch(step):
    if step == 3 and rank == 1:
        time.sleep(1000)
    return torch.ones(8, 4)

def save(step):
    if step == 3 and rank == 2:
        lock.acquire()
        lock.acquire()

def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    for step in range(10):
        batch = load_batch(step)
        save(step)
        if step == 3 and rank == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        model(batch).sum().backward()
        print("step", step, flush=True)

lock = threading.Lock()
dist.init_process_group("gloo")
rank = dist.get_rank()
train()
"""
"""A job of four ranks, of which each hangs in another way after three steps."""


def line_of(program: str, words: str) -> int:
    """Return the number of the line with these words."""
    return next(number for number, line in enumerate(program.splitlines(), 1) if words in line)


def pids(folder: Path, count: int) -> list[int]:
    return [int(text) for text in wait_for_files(*(folder / f"pid-{rank}" for rank in range(count)))]


def said(process: subprocess.Popen[bytes], words: bytes) -> bytes:
    """Return what mpilaunch says on stderr up to a line with these words."""
    assert process.stderr is not None
    text = b""
    while words not in text or not text.endswith(b"\n"):
        assert select.select([process.stderr], [], [], 30)[0], text
        text += os.read(process.stderr.fileno(), 1)  # the rest is for `finish`
    return text


# On request


@pytest.mark.parametrize("quiet", [(), ("-q",)], ids=["notes", "quiet"])
@proves(
    "quit-shows", SIGNALS, "`Ctrl-\\`, or SIGQUIT to mpilaunch", finder="the head, which asks each node",
    says="`SIGQUIT to mpilaunch: what the ranks do (once more within 2 s ends the job):`", code="the job's", within=10,
)  # fmt: skip
def test_a_quit_shows_what_the_ranks_do_and_the_job_continues(tmp_path: Path, quiet: tuple[str, ...]) -> None:
    with launching(*quiet, "-np", "3", *sh(WAIT), cwd=tmp_path) as process:
        ranks = pids(tmp_path, 3)
        assert process.stdout is not None and [process.stdout.readline() for _ in ranks] == [b"here\n"] * 3  # the head knows
        wait_until(lambda: {state(rank) for rank in ranks} == {"S"}, "all wait")
        os.kill(ranks[1], signal.SIGSTOP)
        process.send_signal(signal.SIGQUIT)
        shown = said(process, b"ranks 0,2 on localhost: idle, waits").decode().splitlines()
        assert shown[0] == "SIGQUIT to mpilaunch: what the ranks do (once more within 2 s ends the job):"
        assert shown[1].startswith("    rank 1 on localhost: stopped by a signal; kill -CONT lets it continue, no output for ")
        os.kill(ranks[1], signal.SIGCONT)
        time.sleep(2.1)  # the time in which a second one would end the job
        process.send_signal(signal.SIGQUIT)
        said(process, b"ranks 0-2 on localhost: idle, waits")
        assert b" --native" in said(process, b"their stacks: mpilaunch stack ")
        for rank in range(3):
            (tmp_path / f"fifo-{rank}").write_text("went on\n")
        done = finish(process)
    assert (done.code, done.lines, done.words) == (0, ["went on"] * 3, "")


def test_a_quit_names_the_verb_that_shows_stacks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLEEPER)
    with launching("-np", "2", "--timeout", "20", sys.executable, "train.py", cwd=tmp_path) as process:
        assert process.stdout is not None and [process.stdout.readline() for _ in range(2)] == [b"begins\n"] * 2
        process.send_signal(signal.SIGQUIT)
        shown = said(process, b"their stacks: mpilaunch stack ").decode()
        process.send_signal(signal.SIGKILL)
        finish(process)
    assert "rank 1 on localhost: in load_batch (train.py:5), no output for " in shown


def test_the_keys_of_a_terminal_show_what_ranks_do_and_end_the_job(tmp_path: Path) -> None:
    program = sh("echo $$ > pid-$RANK; echo here; exec sleep 100")
    with terminal(*MPILAUNCH, "-np", "2", *map(str, program), cwd=tmp_path) as screen:
        ranks = pids(tmp_path, 2)
        screen.read_until(b"here", count=2)
        screen.type(b"\x1c")  # Ctrl-\
        screen.read_until(b"ranks 0-1 on localhost: idle, waits")
        assert all(map(living, ranks))
        screen.type(b"\x03")  # Ctrl-C
        screen.read_until(b"[interrupted]: SIGINT to mpilaunch")  # "error" is coloured
        assert screen.process.wait(timeout=20) == 130
        wait_gone(*ranks)


@proves(
    "quit-ends", SIGNALS, "the same twice within 2 s", finder="the head", says="`error[interrupted]: SIGQUIT to mpilaunch`",
    code="131", within=10,
)  # fmt: skip
def test_a_second_quit_ends_the_job(tmp_path: Path) -> None:
    with launching("-np", "2", *sh(f"trap 'echo INT; exit 0' INT; {STAY}"), cwd=tmp_path) as process:
        ranks = pids(tmp_path, 2)
        process.send_signal(signal.SIGQUIT)
        said(process, b"SIGQUIT to mpilaunch")
        process.send_signal(signal.SIGQUIT)
        done = finish(process)
        wait_gone(*ranks)
    assert (done.code, done.lines) == (131, ["INT", "INT"])
    assert "error[interrupted]: SIGQUIT to mpilaunch\n" in done.words


def test_a_quit_after_an_interrupt_kills_at_once(tmp_path: Path) -> None:
    with launching("-np", "1", *sh(f"trap 'touch got' INT TERM; {STAY}"), cwd=tmp_path) as process:
        (rank,) = pids(tmp_path, 1)
        process.send_signal(signal.SIGINT)
        wait_until((tmp_path / "got").exists, "the rank got it")
        began = time.monotonic()
        process.send_signal(signal.SIGQUIT)
        done = finish(process)
        wait_gone(rank)
    assert done.code in (130, 131) and time.monotonic() - began < 8, "the grace time is 10 s"


def nccl_rank(folder: Path) -> list[str]:
    """Return the words for two ranks, of which one answers as NCCL does and says where it listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "server.py").write_text(SERVER)
    program = sh(f"[ $RANK = 1 ] && exec sleep 100; exec {sys.executable} server.py good {port}")
    return ["-np", "2", "-x", f"NCCL_RAS_ADDR=localhost:{port}", *map(str, program)]


def test_nccl_is_asked_on_request(tmp_path: Path) -> None:
    name = f"test-{uuid.uuid4()}"
    with launching("--name", name, *nccl_rank(tmp_path), cwd=tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline().strip().isdigit()

        def shown(*words: str) -> str:
            with launching("stack", name, *words) as asking:
                return finish(asking).out.decode()

        assert "NCCL" not in shown()
        assert "\nthe report of NCCL:\n    Job summary: 2 nodes\n    \ufffd CLIENT PROTOCOL 2\n" in shown("--nccl")
        process.send_signal(signal.SIGTERM)
        assert "NCCL" not in finish(process).words


def test_nccl_is_asked_at_the_time_limit(tmp_path: Path) -> None:
    done = launch("--timeout", "3", *nccl_rank(tmp_path), cwd=tmp_path)
    assert done.code == 124
    assert "the report of NCCL:\n    Job summary: 2 nodes\n" in done.words[: done.words.index("error[timeout]")]


LATE = """
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

static void load_batch(void) {
    while (access("go", F_OK)) usleep(20000);
}

int main(int argc, char **argv) {
    int rank, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 1) puts("begins"), fflush(stdout), load_batch();
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("sum %d\\n", sum);
    return MPI_Finalize();
}
"""


@pytest.mark.needs("gdb", "mpicc.mpich", "mpicc.openmpi", "libpmix.so.2")
@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_a_rank_that_is_late_to_a_collective_of_mpi_is_reported_by_its_line_of_c(tmp_path: Path, family: str) -> None:
    (tmp_path / "late.c").write_text(LATE)
    subprocess.run([f"mpicc.{family}", "-g", "-o", "late", "late.c"], cwd=tmp_path, check=True)
    name = f"test-{uuid.uuid4()}"
    with launching("-np", "3", "--name", name, "./late", cwd=tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == b"begins\n"
        reduces = f"in PMPI_Allreduce (late.c:{line_of(LATE, 'MPI_Allreduce')})"
        wait_until(lambda: f"ranks 0,2 on localhost: {reduces}, no" in shown(name), "two ranks wait in it")
        text = shown(name)
        assert re.match(rf"rank 1 on localhost: in \w+ \(late.c:{line_of(LATE, 'usleep')}\), no output for ", text)
        assert f"\n      load_batch at late.c:{line_of(LATE, 'usleep')}\n" in text
        (tmp_path / "go").touch()
        done = finish(process)
    assert (done.code, done.lines, done.err) == (0, ["sum 3"] * 3, b"")


@pytest.mark.needs("mpicc.mpich", "mpicc.openmpi", "libpmix.so.2")
@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_a_rank_that_is_late_to_mpi_init_is_distinguished_from_those_that_wait_there(tmp_path: Path, family: str) -> None:
    late = """int rank, sum;
    if (*getenv("RANK") == '2') puts("begins"), fflush(stdout), load_batch();"""
    (tmp_path / "late.c").write_text("#include <stdlib.h>\n" + LATE.replace("int rank, sum;", late))
    subprocess.run([f"mpicc.{family}", "-o", "late", "late.c"], cwd=tmp_path, check=True)
    with launching("-H", "local:2,local:1", "./late", cwd=tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == b"begins\n"

        def in_fence() -> bool:
            process.send_signal(signal.SIGQUIT)
            lines = said(process, b"their stacks: ").decode()
            time.sleep(2.1)  # the time in which a second one would end the job
            return "ranks 0-1 on local: " in lines and f"{FENCED}, no output" in lines and "rank 2 on local" in lines

        wait_until(in_fence, "two ranks wait in a fence")
        (tmp_path / "go").touch()
        assert finish(process).code == 0


def shown(name: str, *words: str) -> str:
    with launching("stack", name, "--native", *words) as asking:
        return finish(asking).out.decode()


@pytest.mark.needs("gdb")
def test_a_stopped_rank_stays_stopped_and_one_that_ends_ends_its_debugger(tmp_path: Path) -> None:
    name = f"test-{uuid.uuid4()}"
    with launching("-np", "2", "--name", name, *sh(WAIT), cwd=tmp_path) as process:
        ranks = pids(tmp_path, 2)
        os.kill(ranks[1], signal.SIGSTOP)
        wait_until(lambda: stopped(ranks[1]), "it is stopped")
        lines = shown(name).splitlines()
        assert [line for line in lines if line.startswith("rank 1 on localhost: stopped by a signal")]
        assert lines.count("    Main thread in C (most recent call first):") == 2 and stopped(ranks[1])
        with launching("stack", name, "--native") as asking:
            wait_until(lambda: bool(debuggers(ranks)), "a debugger runs")
            left = debuggers(ranks)
            process.kill()
            asking.kill()
        wait_gone(*ranks, *left)


def debuggers(ranks: list[int]) -> list[int]:
    words = [f"-p\0{rank}\0".encode() for rank in ranks]
    return [pid for pid in everything() if any(word in process_file(pid, "cmdline") for word in words)]


# After a time without output


@proves(
    "hang", LIMITS, "no rank has any output for `--hang-timeout`", finder="the head",
    says="`error[hang]: no output of any rank`", code="124", within=10,
)  # fmt: skip
def test_silent_ranks_are_reported_by_their_line_of_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLEEPER)
    done = launch("-np", "4", "--hang-timeout", "1", "--report", "r.json", sys.executable, "train.py", cwd=tmp_path)
    lines = [line for line in done.words.splitlines() if line.startswith(("error", "    rank"))]
    assert done.code == 124 and done.lines == ["begins"] * 4
    assert lines[0].startswith("error[hang]: no output of any rank for 1 s: --hang-timeout")
    assert lines[1].startswith("    rank 1 on localhost: in load_batch (train.py:5), no output for ")
    assert lines[2].startswith("    ranks 0,2-3 on localhost: in train_step (train.py:")
    assert [line for line in done.words.splitlines() if "Main thread" in line] == [
        f"[{ranks}] Main thread (most recent call first):" for ranks in ("0,2-3", "1")
    ], "equal stacks are printed once"
    verdict = json.loads((tmp_path / "r.json").read_text())["verdict"]
    assert verdict["cause"] == "hang" and "load_batch (train.py:5)" in verdict["detail"]


SAVES = "import signal; signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), exit(0)))\n" + SLEEPER
HIDES = "import ctypes; ctypes.c_char.in_dll(ctypes.pythonapi, '_PyRuntime').value = b'-'\n" + SLEEPER
"""It removes the mark by which Python 3.13 is known."""


def test_a_rank_that_saves_at_the_end_is_reported_by_its_line_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES)
    done = launch("-np", "2", "--timeout", "1", sys.executable, "train.py", cwd=tmp_path)
    assert (done.code, done.lines) == (124, ["begins"] * 2 + ["saved"] * 2)
    assert "    rank 1 on localhost: in load_batch (train.py:6), no output for " in done.words


@pytest.mark.skipif((3, 13) not in PYTHONS, reason="needs Python 3.13, which says where its stacks are")
def test_a_rank_that_cannot_be_read_writes_its_stacks_as_it_ends(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HIDES)
    done = launch("-np", "2", "--timeout", "1.5", PYTHONS[3, 13], "train.py", cwd=tmp_path)
    assert (done.code, done.lines) == (124, ["begins"] * 2)
    assert "[1] Fatal Python error: Aborted" in done.words
    assert "    rank 1 on localhost: in load_batch (train.py:6), no output for " in done.words


FAILS = """
import os, sys, time

def load_batch():
    time.sleep(0.5)
    sys.exit("no data")

def all_reduce():
    time.sleep(100)

load_batch() if os.environ["RANK"] == "1" else all_reduce()
"""


@pytest.mark.parametrize("option", ["--stack-on-failure", "--no-stack-on-failure"])
def test_what_the_others_did_when_a_rank_failed_is_reported(tmp_path: Path, option: str) -> None:
    (tmp_path / "train.py").write_text(FAILS)
    done = launch("-np", "4", option, "--report", "r.json", sys.executable, "train.py", cwd=tmp_path)
    told = option == "--stack-on-failure"
    assert done.code == 1 and "error[rank-failed]: rank 1 on localhost exited with code 1" in done.words
    others = "what the other ranks did then:\n    | ranks 0,2-3 on localhost: in all_reduce (train.py:9), no"
    assert (others in done.words) is told
    assert ("[0,2-3] Main thread (most recent call first):" in done.words.splitlines()) is told
    verdict = json.loads((tmp_path / "r.json").read_text())["verdict"]
    assert verdict["cause"] == "rank-failed" and len(verdict["context"]) == told


def test_one_rank_that_talks_keeps_the_job_alive(tmp_path: Path) -> None:
    program = "[ $RANK = 0 ] && for i in 1 2 3 4 5 6 7 8; do sleep 0.25; echo $i; done >&2; true"
    done = launch("-np", "2", "--hang-timeout", "1", *sh(program), cwd=tmp_path)
    assert (done.code, done.words) == (0, "".join(f"{i}\n" for i in range(1, 9)))


def test_time_in_which_all_is_stopped_does_not_count(tmp_path: Path) -> None:
    with launching("-np", "1", "--hang-timeout", "1.5", *sh(f"{STAY}; sleep 0.3"), cwd=tmp_path) as process:
        ranks = pids(tmp_path, 1)
        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: all(map(stopped, (process.pid, *ranks))), "all are stopped")
        time.sleep(2)
        (tmp_path / "go").touch()
        process.send_signal(signal.SIGCONT)
        done = finish(process)
    assert (done.code, done.words) == (0, "")


def test_ranks_that_wait_for_the_reader_of_their_output_do_not_hang(tmp_path: Path) -> None:
    program = "i=0; while [ $i -lt 60 ]; do head -c 65536 /dev/zero; i=$((i + 1)); done; echo"
    with launching("-np", "1", "--hang-timeout", "0.5", *sh(program), cwd=tmp_path) as process:
        time.sleep(2.5)  # nobody reads
        done = finish(process)
    assert (done.code, done.words, len(done.out)) == (0, "", 60 * 65536 + 1)


def test_a_job_that_hung_is_started_again(tmp_path: Path) -> None:
    program = "[ -e again ] && exec echo well; touch again; sleep 100"
    done = launch("-np", "1", "--hang-timeout", "0.5", "--max-restarts", "1", *sh(program), cwd=tmp_path)
    assert (done.code, done.out) == (0, b"well\n")
    assert "note: attempt 1: no output of any rank for " in done.words


def test_hosts_on_their_own_have_no_such_limit() -> None:
    done = launch("--independent", "--hang-timeout", "5", "-H", "localhost", "true")
    assert done.code == 2
    assert done.words.startswith("error[option-conflict]: --independent and --hang-timeout cannot be used together")


@pytest.mark.slow
@pytest.mark.testbed
def test_each_rank_of_a_torch_job_is_reported_by_its_line(hosts: Hosts, shared: Path) -> None:
    (shared / "train.py").write_text(TRAIN)
    names = ("node01", "node02")
    with torch_on(hosts, names) as options:
        words = ["-H", "node01:2,node02:2", "-x", "GLOO_SOCKET_IFNAME=eth0", *options, "--hang-timeout", "12"]
        done = hosts.launch(*words, "train.py", timeout=200)
    told = dict(re.findall(r"(?m)^    rank ([0-3]) on node0[12]: (.*), no output for", done.stderr))
    assert done.returncode == 124, done.stderr
    assert told["1"] == f"in load_batch (train.py:{line_of(TRAIN, 'time.sleep')})"
    assert told["2"] == f"in save (train.py:{line_of(TRAIN, '        lock.acquire()') + 1})"
    assert told["3"].startswith("stopped by a signal; kill -CONT lets it continue")
    assert told["0"].endswith(f"backward (train.py:{line_of(TRAIN, 'backward()')})")


LOADER = """
import os, time
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        while index == 40 and os.environ["RANK"] == "1" and not os.path.exists("go"):
            time.sleep(0.05)
        return index

if __name__ == "__main__":
    for batch in DataLoader(Samples(), batch_size=4, num_workers=2):
        if os.environ["RANK"] == "0" and batch[-1] == 63:
            print("last", flush=True)
            while not os.path.exists("go"): time.sleep(0.05)
    print("done", flush=True)
"""


@pytest.mark.needs("torch")
def test_a_worker_of_a_data_loader_is_reported_and_the_job_continues(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOADER)
    name, loop, sleeps = f"test-{uuid.uuid4()}", line_of(LOADER, "for batch in"), line_of(LOADER, "time.sleep")
    worker = f"rank 1 on localhost: in __next__ (train.py:{loop}); a worker process in __getitem__ (train.py:{sleeps}), "
    with launching("-np", "2", "--name", name, torch_python(), "train.py", cwd=tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == b"last\n"

        def shown() -> str:
            with launching("stack", name) as asking:
                return finish(asking).out.decode()

        wait_until(lambda: worker in shown(), "the worker is told")
        assert f"rank 0 on localhost: in <module> (train.py:{loop + 3}), " in shown(), "its workers have ended or wait"
        (tmp_path / "go").touch()
        done = finish(process)
    assert (done.code, done.lines) == (0, ["done"] * 2)
