"""What a launch costs, counted and not timed: modules loaded, processes started, messages and bytes for each node.

A number here may be raised for a reason; it must not grow by itself, for every launch and every node pays it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpilaunch.head import lazily
from tests.launching import launching, wait_until

ROOT = Path(__file__).parent.parent

COUNTING = """
import sys
there = set(sys.modules)  # from 3.13 on `-c` loads linecache
from mpilaunch.head import lazily
lazily.put_off_what_everyone_imports()
import json
from mpilaunch import cli
from mpilaunch.wire.session import Session

STARTS = ("subprocess.Popen", "os.posix_spawn", "os.fork")
said, heard, started = [], [], []
send, receive = Session.send, Session.receive_data

def counted_send(self, message, shared=b""):
    said.append(message["type"])
    send(self, message, shared)

def counted_receive(self, data, clock):
    events = receive(self, data, clock)
    heard.extend(value["type"] for kind, channel, value in events if kind == 1)
    return events

Session.send, Session.receive_data = counted_send, counted_receive
sys.addaudithook(lambda event, arguments: started.append(event) if event in STARTS else None)
code = cli.main(sys.argv[1:])
modules = [name for name in sys.modules if name not in there and not lazily.is_put_off(name)]
print(json.dumps([code, modules, said, heard, started]), file=sys.stderr)
"""
"""A launch in a process that tells what it did."""


class Cost:
    """What one launch on this machine took."""

    def __init__(self, *words: str) -> None:
        folders = f"{ROOT}:{ROOT / 'agents'}"
        done = subprocess.run(
            [sys.executable, "-c", COUNTING, *words],
            env={**os.environ, "PYTHONPATH": folders},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=True,
        )
        told: list[Any] = json.loads(done.stderr.splitlines()[-1])
        self.output = done.stdout
        self.code, self.modules, self.said, self.heard, self.started = told
        assert self.code == 0, done.stderr


@pytest.fixture(scope="module")
def plain() -> Cost:
    """Give what two ranks on two nodes of this machine take."""
    return Cost("-H", "local:1,local:1", "-np", "2", "true")


# Modules


@pytest.fixture(scope="module")
def here() -> Cost:
    """Give what two ranks take of which nobody has said where they run."""
    return Cost("-np", "2", "--oversubscribe", "true")


def test_a_local_launch_loads_little(here: Cost) -> None:
    never = {"ssl", "_ssl", "ast", "dataclasses", "random", "datetime", "zipfile", "tempfile", "hashlib", "importlib.metadata"}
    put_off = {*lazily.FOR_FEW, *lazily.FOR_ASYNCIO, "typing", "signal", "re"}
    assert not (never | put_off) & set(here.modules)
    assert not {"asyncssh", "click", "psutil", "rich", "yaml"} & set(here.modules)
    assert not {"mpilaunch.head.pack", "mpilaunch.head.report", "mpilaunch.help", "mpilaunch.plan"} & set(here.modules)
    ours = [name for name in here.modules if name.partition(".")[0] in ("mpilaunch", "mpilaunch_agents")]
    assert len(ours) <= 73, ours
    assert len(here.modules) <= 190, here.modules


def loaded(code: str, *words: str) -> list[str]:
    """Return what a bare Python has loaded after some code."""
    argv = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path += sys.argv[1:]; {code}; print(*sys.modules)", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout.split()


def test_a_daemon_loads_little() -> None:
    modules = loaded("import mpilaunch.daemon.main", str(ROOT))
    slow = {"ctypes", "typing", "subprocess", "threading", "logging", "asyncio", "inspect", "contextlib", "random", "zlib"}
    assert not (slow | {"enum", "socket", "selectors", "functools", "collections", "_sre"}) & set(modules)
    ours = {name.rpartition(".")[2] for name in modules if name.startswith("mpilaunch.daemon.")}
    assert not {"elf", "modules", "singletons", "pmix", "pmix_ranks"} & ours
    assert len(ours) <= 19, ours
    assert len(modules) <= 90, modules


# Processes


def test_a_local_launch_starts_one_process_for_each_node(plain: Cost) -> None:
    assert plain.started == ["os.posix_spawn"] * 2


def test_the_daemon_that_starts_before_the_job_is_made_is_the_one_that_serves_it(here: Cost) -> None:
    assert here.started == ["os.posix_spawn"]


def descendants(pid: int) -> list[str]:
    """Return the commands of all processes below one."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [Path(f"/proc/{child}/comm").read_text().strip(), *descendants(int(child))]
    return found


def test_a_program_that_cannot_use_mpi_has_no_helper_beside_it() -> None:
    with launching("-np", "2", "sleep", "100") as process:
        wait_until(lambda: descendants(process.pid).count("sleep") == 2, "both ranks run")
        assert len(descendants(process.pid)) == 4  # the guard, the daemon, the ranks
        process.terminate()
        process.wait(30)


# Messages


def test_a_plain_launch_takes_seven_messages_for_each_node(plain: Cost) -> None:
    assert sorted(plain.said) == ["launch", "launch", "prepare", "prepare"]
    once = ["exited", "finished", "hello", "ready", "started"]
    assert sorted(plain.heard) == sorted(2 * once)


def test_a_fence_takes_one_message_each_way_for_each_node() -> None:
    client = str(Path(__file__).parent / "programs" / "pmi_client.py")
    cost = Cost("-H", "local:3,local:3", "-np", "6", "--mpi", "pmi1", sys.executable, client)
    assert len(cost.output.splitlines()) == 6
    assert cost.heard.count("collective") == cost.said.count("collective") == 2
    # Each rank ends with a message of its own, and each node has told once that the first rank has come.
    assert sorted(set(cost.heard)) == ["collective", "exited", "finished", "hello", "joined", "ready", "started"]
    assert len(cost.heard) == 2 * 6 + 6
    assert sorted(cost.said) == sorted(2 * ["collective", "launch", "prepare"])


# Growth

STEPS = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import scale
from mpilaunch.wire import session

def trace(frame, event, argument):
    if "/mpilaunch/" not in frame.f_code.co_filename:
        return None
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    return step

def step(frame, event, argument):
    global steps
    steps += 1
    return step

def encode(value):
    global encoded
    text = real_encode(value)
    encoded += len(text)
    return text

real_encode, session._encode, encoded = session._encode, encode, 0
nature = sys.argv[1]
scale.measure(2, 2, nature)  # what is done once is not counted: modules, and a bundle that has changed
for nodes, ranks in ((2, 2), (60, 60), (300, 300), (2, 60), (2, 300)):
    steps = encoded = 0
    sys.settrace(trace)
    scale.measure(nodes, ranks, nature)
    sys.settrace(None)
    print(steps, encoded)
"""
"""Counts the steps of the interpreter in our code for launches of several sizes, and the characters of JSON that are made."""


@pytest.mark.parametrize("nature", ["scripts", "scripts-that-fence"])
def test_five_times_the_nodes_or_ranks_take_the_head_five_times_the_steps(nature: str) -> None:
    argv = [sys.executable, "-c", STEPS, str(ROOT / "benchmarks"), nature]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    for least, *counts in zip(*(map(int, line.split()) for line in done.stdout.splitlines()), strict=True):
        few_nodes, many_nodes, few_ranks, many_ranks = (count - least for count in counts)
        assert many_nodes < 5.5 * few_nodes, (few_nodes, many_nodes)
        assert many_ranks < 5.5 * few_ranks, (few_ranks, many_ranks)
