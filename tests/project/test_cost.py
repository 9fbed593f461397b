"""What a launch costs, counted and not timed: processes started, messages, round trips and bytes for each node.

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

from tests.support.launching import launching, wait_until
from tests.support.paths import PROGRAMS, ROOT

COUNTING = """
import json
import sys
from mpilaunch.cli import main as cli
from mpilaunch.wire.session import Session

STARTS = ("subprocess.Popen", "os.posix_spawn", "os.fork")
said, heard, started, turns, size = [], [], [], [], 0
send, receive = Session.send, Session.receive_data
take = Session.data_to_send

def counted_send(self, message, shared=b""):
    said.append(message["type"])
    turns.append("said")
    send(self, message, shared)

def counted_take(self):
    global size
    data = take(self)
    size += len(data)
    return data

def counted_receive(self, data, clock):
    global size
    size += len(data)
    events = receive(self, data, clock)
    turns.append("heard")
    heard.extend(value["type"] for kind, channel, value in events if kind == 1)
    return events

Session.data_to_send = counted_take
Session.send, Session.receive_data = counted_send, counted_receive
sys.addaudithook(lambda event, arguments: started.append(event) if event in STARTS else None)
code = cli.main(sys.argv[1:])
trips = sum(before == "heard" and now == "said" for before, now in zip(turns, turns[1:]))
print(json.dumps([code, said, heard, started, trips, size]), file=sys.stderr)
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
        self.code, self.said, self.heard, self.started, self.trips, self.size = told
        assert self.code == 0, done.stderr


@pytest.fixture(scope="module")
def plain() -> Cost:
    """Give what two ranks on two nodes of this machine take."""
    return Cost("-H", "local:1,local:1", "-np", "2", "true")


@pytest.fixture(scope="module")
def here() -> Cost:
    """Give what two ranks take of which nobody has said where they run."""
    return Cost("-np", "2", "--oversubscribe", "true")


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


def test_a_plain_launch_takes_eight_messages_for_each_node(plain: Cost) -> None:
    assert sorted(plain.said) == sorted(2 * ["launch", "limits", "prepare"])
    once = ["exited", "finished", "hello", "ready", "started"]
    assert sorted(plain.heard) == sorted(2 * once)


def test_a_fence_takes_one_message_each_way_for_each_node() -> None:
    client = str(PROGRAMS / "pmi_client.py")
    cost = Cost("-H", "local:3,local:3", "-np", "6", "--mpi", "pmi1", sys.executable, client)
    assert len(cost.output.splitlines()) == 6
    assert cost.heard.count("collective") == cost.said.count("collective") == 2
    # Each rank ends with a message of its own, and each node has told once that the first rank has come.
    assert sorted(set(cost.heard)) == ["collective", "exited", "finished", "hello", "joined", "ready", "started"]
    assert len(cost.heard) == 2 * 6 + 6
    assert sorted(cost.said) == sorted(2 * ["collective", "launch", "limits", "prepare"])


def test_a_plain_launch_takes_two_round_trips_to_each_node(here: Cost) -> None:
    assert here.said == ["limits", "prepare", "launch"]
    assert here.trips == 2  # hello, prepare; ready, launch; started, exited and finished


def test_a_plain_launch_takes_a_few_kilobytes_beside_the_environment() -> None:
    few, many = (Cost("-np", count, "--oversubscribe", "true").size for count in ("2", "10"))
    environment = sum(len(name) + len(value) for name, value in os.environ.items())
    assert few < environment + 20_000
    assert many - few < 8 * 1_500


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
