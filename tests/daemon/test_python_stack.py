"""The stacks that are read out of a process are those that it tells itself, and nothing happens to it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mpilaunch.daemon.observe.python import stack
from mpilaunch.daemon.observe.python.layout import COOKIE, DESCRIPTION_BYTES, LAYOUTS, described
from mpilaunch.daemon.observe.python.memory import LARGEST, Memory, Unreadable
from mpilaunch.daemon.observe.python.runtime import Runtime, version_in
from mpilaunch.daemon.observe.python.stack import MOST_FRAMES, MOST_THREADS, stacks_of
from tests.support.launching import state, wait_until
from tests.support.pythons import PYTHONS, each_python
from tests.support.second_user import USER, as_user

PROGRAM = '''\
import asyncio, functools, json, sys, threading, traceback

ready, go = threading.Semaphore(0), threading.Event()

def wait():
    ready.release()
    go.wait(
        timeout=100,
    )

class Größe:
    def recurse(self, depth):
        if depth:
            return self.recurse(
                depth - 1)
        wait()

def generator():
    yield 1
    for _ in [0]:
        yield wait()

async def coroutine():
    await asyncio.sleep(0)
    await inner()

async def inner():
    wait()

def called_from_c(_):
    wait()
    return 0

def excepts():
    try:
        raise ValueError("x")
    except ValueError:
        (lambda: wait())()

long = "def long(x):\\n" + "    x = x + 1\\n" * 400 + "\\n" * 300 + "    wait()\\n"
scope = {"wait": wait}
exec(compile(long, "/tmp/日本 \\U0001f600/long.py", "exec"), scope)

targets = [
    functools.partial(Größe().recurse, 5),
    lambda: list(generator()),
    lambda: asyncio.new_event_loop().run_until_complete(coroutine()),
    lambda: sorted([2, 1], key=called_from_c),
    lambda: {n: wait() for n in range(1)},
    excepts,
    functools.partial(scope["long"], 1),
]
threads = [threading.Thread(target=target, daemon=True) for target in targets]
for thread in threads:
    thread.start()
for _ in threads:
    ready.acquire()

def tell():
    told = []
    for thread in (threading.main_thread(), *threads):
        frames = traceback.extract_stack(sys._current_frames()[thread.ident])
        told.append([[frame.filename, frame.lineno, frame.name] for frame in reversed(frames)])
    told[0] = told[0][2:]  # the frames of tell
    print(json.dumps(told), flush=True)

tell(); sys.stdin.readline()
go.set()
for thread in threads:
    thread.join()
print("done", flush=True)
'''


@contextmanager
def running(*argv: str | Path) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*map(str, argv)], text=True, encoding="utf-8", **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@each_python
def test_the_stacks_are_those_that_the_program_tells(python: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM, encoding="utf-8")
    with running(python, program) as process:
        told = json.loads(line(process))
        wait_until(lambda: stacks_of(process.pid)[0], "it waits")
        _, (main, *others) = stacks_of(process.pid)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert (line(process), process.wait(timeout=20)) == ("done\n", 0), "it has run on as if nothing had been"
    assert [frame[2] for frame in main][-1] == "<module>" and main[-1][0] == str(program)
    expected = {json.dumps(thread) for thread in told[1:]}
    assert {json.dumps(thread) for thread in others} == expected and len(others) == len(told) - 1
    assert any("日本" in frame[0] for thread in others for frame in thread)


@each_python
def test_a_stopped_process_is_read_too(python: str) -> None:
    with running(python, "-ISc", "import time\nprint('up', flush=True)\ntime.sleep(100)") as process:
        line(process)
        sleeps = (True, [[("<string>", 3, "<module>")]])
        wait_until(lambda: stacks_of(process.pid) == sleeps, "it sleeps")
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: state(process.pid) == "T", "it is stopped")
        assert stacks_of(process.pid) == sleeps


def test_deep_stacks_are_cut_and_a_process_that_runs_is_read() -> None:
    program = "import sys\ndef f(n):\n  if n: f(n - 1)\n  print('up', flush=True)\n  while True: pass\nf(500)"
    with running(sys.executable, "-c", program) as process:
        line(process)
        wait_until(lambda: stacks_of(process.pid)[1][0][0] == ("<string>", 5, "f"), "it runs")
        _, (frames,) = stacks_of(process.pid)
        assert len(frames) == MOST_FRAMES and frames[1:] == [("<string>", 3, "f")] * (MOST_FRAMES - 1)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("python3.10", (3, 10)),
        ("libpython3.9.so.1.0", (3, 9)),
        ("libpython3.12.so", (3, 12)),
        *((name, (0, 0)) for name in ("python", "python3", "python2.7", "python3.10d", "libpython3.so", "libpython3.9.so.d")),
        *((name, (0, 0)) for name in ("python3.x", "xpython3.9", "python3.99999", "libpython3.9-x86_64.so.1.0", "")),
    ],
)
def test_versions_in_the_names_of_interpreters(name: str, version: tuple[int, int]) -> None:
    assert version_in(name) == version


@pytest.mark.parametrize(("count", "depth"), [(60, 120), (200, 1)])
def test_many_threads_are_cut(count: int, depth: int) -> None:
    program = f"""
import threading, time
def f(n): f(n - 1) if n else (up.release(), time.sleep(100))
up = threading.Semaphore(0)
for _ in range({count}): threading.Thread(target=f, args=({depth},), daemon=True).start()
for _ in range({count}): up.acquire()
print("up", flush=True)
time.sleep(100)
"""
    with running(sys.executable, "-c", program) as process:
        line(process)
        _, threads = stacks_of(process.pid)
        assert len(threads) == MOST_THREADS or sum(map(len, threads)) == stack.MOST_CALLS
        assert threads[0][-1] == ("<string>", 8, "<module>"), "the main thread is not what is cut"


def test_what_has_no_interpreter_is_reported() -> None:
    with running("sleep", "100") as process, pytest.raises(Unreadable, match="no interpreter"):
        stacks_of(process.pid)
    with pytest.raises(Unreadable):
        stacks_of(process.pid)  # it has ended


@pytest.mark.testbed
def test_an_interpreter_that_only_the_process_sees_is_found(tmp_path: Path) -> None:
    """In a container of the same user: the program or its library is a file of its own mount namespace."""
    for python in (f"{sys.base_prefix}/bin/python3", "/usr/bin/python3"):
        program = Path(python).resolve()
        copy = f"mount -t tmpfs none {tmp_path}; cp {program} {program.parent}/../lib/libpython3.*.so.* {tmp_path} 2>/dev/null"
        code = "print('up', flush=True); import time; time.sleep(100)"
        run = f"LD_LIBRARY_PATH={tmp_path} PYTHONHOME={program.parents[1]} exec {tmp_path}/{program.name} -Sc \"{code}\""
        with running("unshare", "--mount", "sh", "-c", f"{copy}; {run}") as process:
            assert line(process) == "up\n" and not list(tmp_path.iterdir())
            wait_until(lambda: stacks_of(process.pid) == (True, [[("<string>", 1, "<module>")]]), "it sleeps")


@pytest.mark.testbed
def test_the_processes_of_other_users_are_not_read() -> None:
    with running(sys.executable, "-c", "print('up', flush=True); import time; time.sleep(100)") as process:
        line(process)

        def read() -> str:
            with pytest.raises(Unreadable) as raised:
                stacks_of(process.pid)
            return str(raised.value)

        assert "Permission denied" in as_user(USER, read)


class Chance(Memory):
    """A memory in which anything stands, at every address."""

    def __init__(self, seed: int, code_type: int) -> None:
        self._chance, self._type = random.Random(seed), code_type
        self.reads = 0

    def read(self, address: int, size: int) -> bytes:
        self.reads += 1
        if self.reads > 20_000 or not 0 <= size <= LARGEST:
            raise Unreadable("enough")
        if size == 8:  # lead on, as a program that means harm would
            return self._chance.choice([0, 8, 100, 4096, self._type, self._chance.getrandbits(64)]).to_bytes(8, "little")
        return self._chance.randbytes(size)


@pytest.mark.parametrize("version", sorted(LAYOUTS), ids=str)
def test_a_hostile_memory_gives_bounded_stacks_or_none(version: tuple[int, int]) -> None:
    read = 0
    for seed in range(200):
        memory = Chance(seed, 64)
        reader = stack._Reader(memory, Runtime(version, LAYOUTS[version], 0x1000, 64))
        try:
            threads = reader.threads()
        except Unreadable:
            continue
        read += bool(threads)
        assert len(threads) <= MOST_THREADS * stack.MOST_INTERPRETERS
        for frames in threads:
            assert len(frames) <= MOST_FRAMES
            assert all(len(file) <= stack.LONGEST_TEXT and number >= 0 for file, number, _ in frames)
    assert read, "some stacks are found by chance, so that the limits are tried"


def test_a_description_of_another_version_is_not_followed() -> None:
    def words(cookie: bytes, version: int, free_threaded: int) -> bytes:
        head = cookie + version.to_bytes(8, "little") + free_threaded.to_bytes(8, "little")
        return head.ljust(DESCRIPTION_BYTES, b"\1")

    assert described(words(COOKIE, 0x030D00F0, 0)) is not None
    for other in (words(COOKIE, 0x030E00F0, 0), words(COOKIE, 0x030D00F0, 1), words(b"xdebugpx", 0x030D00F0, 0)):
        assert described(other) is None


def test_reading_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "find_runtime", lambda pid, memory: forever(memory))

    def forever(memory: Memory) -> Any:
        while True:
            memory.word(id(memory))

    began = time.monotonic()
    with pytest.raises(Unreadable):
        stacks_of(os.getpid())
    assert time.monotonic() - began < 5


def test_the_newest_interpreter_here_is_known() -> None:
    assert all(version in LAYOUTS or version == (3, 13) for version in PYTHONS if version <= (3, 13))
