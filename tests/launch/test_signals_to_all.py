"""A signal to every process of a job, as a batch system sends it: ranks have it once, and nothing else dies."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.hosts import Hosts
from tests.support.launching import children, finish, launching, living, script, wait_for_files, wait_until

HARMLESS = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TSTP", "XCPU")
RANK = """#!/usr/bin/env python3
import os, signal, sys, time
counts = {{}}
def count(number, frame):
    counts[number] = counts.get(number, 0) + 1
for name in {names!r}:
    assert signal.getsignal(getattr(signal, "SIG" + name)) in (signal.SIG_DFL, signal.default_int_handler), name
    signal.signal(getattr(signal, "SIG" + name), count)
assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
place = sys.argv[1]
rank = os.environ["RANK"]
with open(place + "/up-" + rank + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(place + "/up-" + rank + ".new", place + "/up-" + rank)
while not counts.get(signal.SIGTERM) and not os.path.exists(place + "/go"):
    time.sleep(0.01)
if counts.get(signal.SIGTERM):
    time.sleep(1.0)  # its grace, in which another would be counted
print(rank, sorted(counts.items()), flush=True)
"""


def tree(head: int) -> list[int]:
    """Return every process below a head, children before their parents' younger ones."""
    found = children(head)
    for pid in found:
        found += children(pid)
    return found


def rank(folder: Path) -> tuple[str, str]:
    """Return a rank that counts its signals, waits after the first SIGTERM, and tells."""
    text = RANK.format(names=(*HARMLESS, "TERM"))
    return str(script(folder / "rank.py", text)), str(folder)


def send(pids: Sequence[int], name: str) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, getattr(signal, "SIG" + name))


def deliver(ranks: Sequence[int], names: Sequence[str]) -> list[str]:
    """Return what ranks tell when each of these signals has reached them once."""
    numbers = sorted(getattr(signal, "SIG" + name).value for name in names)
    return [f"{rank} {[(number, 1) for number in numbers]}" for rank in ranks]


@pytest.mark.parametrize("mpi", ["none", "auto"])
def test_nothing_below_the_head_dies_of_signals_that_reach_everything(tmp_path: Path, mpi: str) -> None:
    with launching("--mpi", mpi, "-np", "3", *rank(tmp_path)) as job:
        wait_for_files(*(tmp_path / f"up-{number}" for number in range(3)))
        below = tree(job.pid)
        assert len(below) >= 5, "a guard, a daemon, three ranks"
        for name in HARMLESS:
            send(below, name)
            time.sleep(0.05)
        assert all(map(living, below))
        (tmp_path / "go").touch()
        done = finish(job)
    assert (done.code, done.lines) == (0, deliver(range(3), HARMLESS)), done.words
    wait_until(lambda: not any(map(living, below)), "nothing is left")


@pytest.mark.parametrize("order", ["head first", "ranks first", "head last", "without the head"])
def test_a_sigterm_to_every_process_leaves_the_ranks_their_grace(tmp_path: Path, order: str) -> None:
    with launching("-np", "3", *rank(tmp_path)) as job:
        wait_for_files(*(tmp_path / f"up-{number}" for number in range(3)))
        below = tree(job.pid)
        everyone = {
            "head first": [job.pid, *below],
            "ranks first": [*reversed(below), job.pid],
            "head last": [*below, job.pid],
            "without the head": below,
        }[order]
        send(everyone, "TERM")
        done = finish(job)
    assert (done.code, done.lines) == (143, deliver(range(3), ["TERM"])), done.words
    assert "SIGTERM" in done.words
    wait_until(lambda: not any(map(living, below)), "nothing is left")


def test_ranks_that_ignore_the_sigterm_of_a_batch_system_are_killed_after_their_grace(tmp_path: Path) -> None:
    text = f"trap '' TERM; echo $$ >{tmp_path}/up; while :; do sleep 0.05; done"
    with launching("--grace", "1.5", "-np", "1", "sh", "-c", text) as job:
        wait_for_files(tmp_path / "up")
        below = tree(job.pid)
        began = time.monotonic()
        send([job.pid, *below], "TERM")
        done = finish(job)
    assert done.code == 143
    assert 1.4 < time.monotonic() - began < 8
    wait_until(lambda: not any(map(living, below)), "nothing is left")


def test_a_sigterm_before_the_ranks_run_ends_the_start(tmp_path: Path) -> None:
    with launching("--agent", "sh -c 'sleep 600' {host}", "-H", "a", "true") as job:
        wait_until(lambda: tree(job.pid), "the agent runs")
        time.sleep(0.5)
        send([job.pid, *tree(job.pid)], "TERM")
        done = finish(job)
    assert done.code == 143, done.words


@pytest.mark.testbed
@pytest.mark.parametrize("name", ["TERM", "all others"])
def test_signals_to_every_process_on_real_hosts(hosts: Hosts, name: str) -> None:
    place = hosts.shared / f"signals-{name.replace(' ', '-')}"
    place.mkdir()
    words = ("--agent", "ssh", "-H", "node[01-02]:2", "--wdir", "/")
    program = rank(place)
    with hosts.popen([sys.executable, "-m", "mpilaunch", *words, *program]) as job:
        wait_for_files(*(place / f"up-{number}" for number in range(4)))
        below = [pid for host in hosts.names[:2] for pid, _ in hosts.processes(host)]
        if name == "TERM":
            send([*below, job.pid], "TERM")
        else:
            for harmless in HARMLESS:
                send(below, harmless)
                time.sleep(0.05)
            (place / "go").touch()
        out, err = job.communicate(timeout=60)
    signals = ["TERM"] if name == "TERM" else list(HARMLESS)
    assert (job.returncode, sorted(out.splitlines())) == (143 if name == "TERM" else 0, deliver(range(4), signals)), err
    left = [argv for host in hosts.names for _, argv in hosts.processes(host) if "mpilaunch" in "".join(argv)]
    assert left == []
