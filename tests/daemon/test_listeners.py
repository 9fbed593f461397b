"""Roles on a node: whose port it is, worlds that wait beside others, and arguments that are templates."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpilaunch.daemon.ranks.listeners import listens
from tests.support.launching import WireToDaemon, living, wait_for_files, wait_until

SERVE = """
import os, socket, sys
server = socket.socket(socket.AF_INET6 if "6" in sys.argv[1] else socket.AF_INET)
server.bind(("::" if "6" in sys.argv[1] else "127.0.0.1", int(sys.argv[2])))
if "child" in sys.argv[1] and os.fork():
    server.close()
    os.wait()
if "bound" not in sys.argv[1]:
    server.listen()
sys.stdin.read() if len(sys.argv) < 4 else __import__("time").sleep(1000)
"""


@pytest.fixture
def daemon() -> Iterator[WireToDaemon]:
    with WireToDaemon() as made:
        made.until("hello")
        yield made


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def server(kind: str, port: int) -> Iterator[int]:
    """Run a server until the end of the block; give its process id."""
    with subprocess.Popen([sys.executable, "-c", SERVE, kind, str(port)], stdin=subprocess.PIPE) as process:
        yield process.pid


@pytest.mark.parametrize("kind", ["ipv4", "ipv6", "child", "ipv6 child"])
def test_a_process_or_its_child_listens(kind: str) -> None:
    port = free_port()
    with server(kind, port) as pid:
        wait_until(lambda: listens(pid, port), "it listens")
        assert not listens(pid, port + 1)
    assert not listens(pid, port)


def test_a_port_that_is_bound_or_a_strangers_is_not_listened_on() -> None:
    port = free_port()
    with server("bound", port) as pid:
        wait_until(lambda: os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python"), "it runs")
        with server("ipv4", other := free_port()) as stranger:
            wait_until(lambda: listens(stranger, other), "the stranger listens")
            assert not listens(pid, other) and not listens(pid, port)


def test_a_connection_to_the_port_is_no_server() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
        assert listens(os.getpid(), port)
        with subprocess.Popen(["sleep", "1000"]) as client:
            assert not listens(client.pid, port)
            client.kill()


# Over the wire


def test_the_daemon_reports_a_rank_that_listens_once(daemon: WireToDaemon) -> None:
    port = free_port()
    daemon.run(sys.executable, "-c", SERVE, "child", str(port), "stay")
    daemon.send("await", rank=0, port=port)
    message = daemon.until("listens")
    assert (message["rank"], message["port"]) == (0, port)
    daemon.send("await", rank=7, port=port)  # it has ended, or never was
    daemon.send("stop", steps=[[9, 0.0]])
    daemon.until("finished")
    assert [one["type"] for one in daemon.messages].count("listens") == 1


def test_a_world_waits_beside_one_that_runs(daemon: WireToDaemon, tmp_path: Path) -> None:
    daemon.prepare("sh", "-c", f"echo $$ > {tmp_path}/first; read line", number=0, stdin=True)
    daemon.until("ready")
    daemon.prepare("echo", "second {rank}:{host}", first=1, number=1, fields={"rank": 5, "host": "a b"})
    daemon.take_until(lambda: [one["type"] for one in daemon.messages].count("ready") == 2, "both are ready")
    daemon.send("launch", numbers=[0])
    (pid,) = wait_for_files(tmp_path / "first")
    daemon.send("launch", numbers=[1])
    daemon.take_until(lambda: any(one["type"] == "exited" for one in daemon.messages), "the second has ended")
    assert daemon.stdout_of(1) == b"second 5:a b\n" and living(int(pid))
    daemon.send("stop", steps=[[15, 10.0]])
    assert daemon.until("finished")["worlds"] == 2


def test_what_an_ended_world_has_left_is_swept_when_no_other_is_about_to_start(daemon: WireToDaemon) -> None:
    daemon.prepare("sh", "-c", "sleep 60 & echo $!", number=0, drain=0.3)
    daemon.until("ready")
    daemon.send("launch", numbers=[0])
    daemon.until("exited")
    daemon.prepare("echo", "second", first=1, number=1)
    daemon.take_until(lambda: [one["type"] for one in daemon.messages].count("ready") == 2, "both are ready")
    time.sleep(0.8)
    assert living(int(daemon.stdout_of(0))), "the helper of MPI would be gone, too"
    daemon.send("launch", numbers=[1])
    assert daemon.until("finished")["worlds"] == 2
    assert daemon.stdout_of(1) == b"second\n" and not living(int(daemon.stdout_of(0)))


@pytest.mark.parametrize("end", ["stop", "cancel", "lost"])
def test_a_node_whose_ranks_all_wait_ends_at_once(daemon: WireToDaemon, end: str) -> None:
    daemon.prepare("sleep", "1000", number=3)
    daemon.until("ready")
    daemon.send("launch", numbers=[])
    if end == "stop":
        daemon.send("stop", steps=[[15, 1000.0]])
    elif end == "cancel":
        daemon.send("cancel", number=3)
    if end != "lost":
        assert daemon.until("finished")["worlds"] == 1
        assert "started" not in {one["type"] for one in daemon.messages}
    daemon.close_wire()
    daemon.process.wait(10)


def test_a_launch_of_a_world_that_is_not_prepared_breaks_the_protocol(daemon: WireToDaemon) -> None:
    daemon.prepare("sleep", "1000", number=1)
    daemon.until("ready")
    daemon.send("launch", numbers=[2])
    daemon.process.wait(10)
