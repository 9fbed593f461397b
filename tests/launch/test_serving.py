"""Servers that span nodes: they find each other, say when they serve, and end together."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import Hosts
from tests.support.launching import launch
from tests.support.paths import ROOT

SERVER = ROOT / "examples" / "pipeline_server.py"
PORT = 18734
READY = ("--ready", f"http://:{PORT}/health")
NOTE = re.compile(r"note: ready: http://([0-9.]+):[0-9]+/health answers after [0-9.]+ s")


@contextlib.contextmanager
def serving(hosts: Hosts, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server; give it and its address once it says that it serves."""
    program = str(shutil.copy(SERVER, hosts.shared))
    process = hosts.popen(
        [sys.executable, "-m", "mpilaunch", "--wdir", "/", *READY, *words, program, "--port", str(PORT)],
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        ready = next((found for line in process.stderr if (found := NOTE.match(line))), None)
        assert ready is not None, process.communicate()
        yield process, ready[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ask(hosts: Hosts, address: str, path: str) -> str:
    code = f"import urllib.request; print(urllib.request.urlopen('http://{address}:{PORT}/{path}', timeout=10).read().decode())"
    return hosts.run([sys.executable, "-c", code]).stdout.strip()


@pytest.mark.testbed
def test_a_server_on_three_hosts_serves_and_ends_with_its_head(hosts: Hosts) -> None:
    with serving(hosts, "-H", "node01:8,node02:8,node03:8", "--profile", "vllm") as (process, address):
        assert address == hosts.address("node01")
        assert ask(hosts, address, "10") == str(10 + 1 + 2)
        assert ask(hosts, address, "stop") == "bye"
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert sorted(output.splitlines()) == [f"node {rank} has joined {address}" for rank in (1, 2)]


@pytest.mark.testbed
def test_an_interrupt_ends_all_of_it(hosts: Hosts) -> None:
    with serving(hosts, "-H", "node01,node02", "--profile", "vllm") as (process, _):
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "error[interrupted]" in errors


@pytest.mark.testbed
def test_one_that_dies_ends_all_of_it(hosts: Hosts) -> None:
    with serving(hosts, "-H", "node01,node02", "--profile", "vllm") as (process, _):
        (pid,) = [pid for pid, argv in hosts.processes("node02") if "--headless" in argv]
        os.kill(pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 137 and "rank 1 on node02 killed by SIGKILL" in errors


def test_a_program_with_ends_with_is_not_waited_for() -> None:
    done = launch(
        "--role", "main", "-np", "1", "sleep", "0.2", ":", "--role", "workers", "--ends-with", "main", "-np", "2", "sleep", "60"
    )
    assert (done.code, done.words) == (0, "")
    failing = launch(
        "--role", "main", "-np", "1", "sleep", "60", ":", "--role", "workers", "--ends-with", "main", "-np", "1", "false"
    )
    assert failing.code == 1 and "rank 1" in failing.words


def test_a_job_that_ends_before_it_is_ready_says_nothing_of_it(tmp_path: Path) -> None:
    began = time.monotonic()
    done = launch("-np", "1", *READY, "true")
    assert (done.code, done.words) == (0, "") and time.monotonic() - began < 20


def test_a_wrong_url_starts_nothing() -> None:
    done = launch("-np", "1", "--ready", "https://:80/", "echo", "started")
    assert (done.code, done.lines) == (2, [])
    assert done.words.startswith("error[option-value]: --ready: 'https://:80/' is not http://[HOST]:PORT[/PATH]")
