"""The stacks of ranks are read; Python that cannot be read is asked by SIGABRT, and no other process gets it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mpilaunch.daemon.observe import observations, stacks
from mpilaunch.daemon.observe import reading as reading_room
from mpilaunch.daemon.observe.reading import Reading
from mpilaunch.daemon.poller import Poller, Timers
from mpilaunch.job.hangs.stacks import Process, place_in, place_of, stacks_in
from tests.support.launching import wait_until

STAYS = "import time; print('up', flush=True); time.sleep(60)"
HANDLES = "import signal; signal.signal(signal.SIGTERM, lambda *_: None); " + STAYS


def end_of(argv: Sequence[str], *, enabled: bool = True) -> tuple[bool, int, bytes]:
    """Return whether a process was asked, the signal that ended it, and its stderr; one that was not asked is killed."""
    environ = {**os.environ, "PYTHONFAULTHANDLER": "1" if enabled else ""}
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (1 << 20, 1 << 20))
        asked = stacks.Stacks([process.pid]).ask()
        if not asked:
            process.kill()
        _, errors = process.communicate(timeout=60)
    return asked, -process.returncode, errors


def test_python_writes_its_stacks_and_leaves_no_core_file() -> None:
    asked, number, errors = end_of([sys.executable, "-c", STAYS])
    assert (asked, number) == (True, signal.SIGABRT)
    assert b"Current thread" in errors and b'File "<string>", line 1 in <module>' in errors


@pytest.mark.parametrize(
    ("argv", "enabled"),
    [
        ([sys.executable, "-c", STAYS], False),
        ([sys.executable, "-c", HANDLES], True),
        (["sh", "-c", "echo up; exec sleep 60"], True),
    ],
    ids=["without the variable", "that handles SIGTERM", "of another program"],
)
def test_a_process_is_left_alone(argv: list[str], enabled: bool) -> None:
    assert end_of(argv, enabled=enabled) == (False, signal.SIGKILL, b"")


def test_a_process_that_has_gone_is_no_error() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    wait_until(lambda: not os.path.exists(f"/proc/{process.pid}"), "it is gone")
    assert not stacks.Stacks([process.pid]).ask()


WORKERS = """
import multiprocessing, os, sys, time

def work(number, up):
    up.put(number)
    time.sleep(60 + number)

if __name__ == "__main__":
    start = multiprocessing.get_context(sys.argv[1])
    up = start.Queue()
    workers = [start.Process(target=work, args=(number, up)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        up.get()
    print("up", flush=True)
    workers[0].join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_are_read_after_their_rank(tmp_path: Path, method: str) -> None:
    (tmp_path / "train.py").write_text(WORKERS)
    argv = ["sh", "-c", '"$@"; true', "sh", sys.executable, "train.py", method]
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
            place = f"join (train.py:{line_of('.join()')}); a worker process in work (train.py:{line_of('time.sleep')})"
            wait_until(lambda: place_of(read(process.pid)) == place, "all sleep")
            assert sum("work" in {frame.function for frame in each.stacks[0].frames} for each in read(process.pid)) == 3
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def read(pid: int) -> list[Process]:
    reading = Reading({pid: 0}, ask_nccl=False)
    wait_until(lambda: reading.is_done, "all are read")
    return [Process.of(process) for message in reading.found for process in message["processes"]]


def line_of(words: str) -> int:
    return next(number for number, text in enumerate(WORKERS.splitlines(), 1) if words in text)


def test_a_read_that_does_not_end_delays_the_look_but_not_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = threading.Event()
    monkeypatch.setattr(reading_room, "stacks_of", lambda pid: (blocked.wait(60), []))
    monkeypatch.setattr(observations, "READ_SECONDS", 0.6)
    timers, sent = Timers(), list[dict[str, Any]]()
    looks = observations.Observations(Poller(), timers, sent.append)
    with subprocess.Popen(["sleep", "60"]) as process:
        for _ in range(2):
            sent.clear()
            looks.begin({process.pid: 3}, lambda: [3], ask_nccl=False)
            while not sent:
                time.sleep(timers.seconds_left() or 0)
                timers.run()
            assert [message["type"] for message in sent] == ["observed"] and sent[0]["ranks"][0][:2] == [3, process.pid]
            assert sent[0]["fenced"] == [3]
        assert [thread.name for thread in threading.enumerate()].count("stacks") == 1, "no second one waits"
        assert looks.unread([process.pid]) == [process.pid]
        blocked.set()
        process.kill()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_write_theirs_one_after_the_other_and_nothing_is_mixed(tmp_path: Path, method: str) -> None:
    (tmp_path / "train.py").write_text(WORKERS)
    environ = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(
        [sys.executable, "train.py", method], env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        asking = stacks.Stacks([process.pid])
        wait_until(lambda: (asking.ask(), process.poll())[1] is not None, "the first has ended")
        wait_until(lambda: not asking.ask(), "all have ended")
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGABRT
    dumps = stacks_in(errors.decode())
    places = [stack.place for stack in dumps if stack.current]
    line = line_of("time.sleep")
    assert "(train.py:" in places[0] and places.count(f"work (train.py:{line})") == 3
    assert place_in(errors).endswith(f"; a worker process in work (train.py:{line})")
