"""Processes of Python are asked for their stacks by SIGABRT, and no other process gets it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mpilaunch.daemon.observe import stacks
from mpilaunch.job.hangs.stacks import place_in, stacks_in
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
    line = next(number for number, text in enumerate(WORKERS.splitlines(), 1) if "time.sleep" in text)
    assert "(train.py:" in places[0] and places.count(f"work (train.py:{line})") == 3
    assert place_in(errors).endswith(f"; a worker process in work (train.py:{line})")
