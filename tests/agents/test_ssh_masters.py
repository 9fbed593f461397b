"""Master connections of the user's own ssh: a live one is used, none is started, and a refused login says where one is missing.

The hosts refuse every login while a test runs, so that only the master, which logged in before, leads to them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agents.ssh import ask, control_path, master
from tests.support.hosts import Hosts
from tests.support.launching import MPILAUNCH, wait_until

pytestmark = pytest.mark.testbed

CLOSED = ("PubkeyAuthentication=no",)


@pytest.fixture
def path(hosts: Hosts) -> Iterator[Path]:
    """Give a short path, on the head and here, for the socket of a master."""
    path = hosts.shared / f"cm%{os.getpid()}"
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("agent", ["ssh", "openssh"])
def test_a_live_master_is_used_and_none_is_started(hosts: Hosts, path: Path, agent: str) -> None:
    options = {"ssh_options": [control_path(path), "ControlMaster=auto"]}
    if agent == "ssh":
        assert ask(hosts, agent, "node02", **options) == [["", "node02", 0]]
        assert not path.exists(), "a connection of our own is no master"
    with master(hosts, "node02", path) as ssh, hosts.sshd_with("node02", *CLOSED):
        assert ask(hosts, agent, "node02", ["sh", "-c", "hostname; exit 3"], **options) == [["", "node02", 3]]
        assert ssh.poll() is None


def test_a_job_runs_over_a_master_and_is_lost_with_it(hosts: Hosts, path: Path) -> None:
    words = ("-H", "node02:2", "--ssh-option", control_path(path), "--reconnect-timeout", "1")
    with master(hosts, "node02", path) as ssh, hosts.sshd_with("node02", *CLOSED):
        done = hosts.launch(*words, "-np", "2", "sh", "-c", "seq 20000; hostname")
        assert (done.returncode, done.stdout.count("node02"), done.stdout.count("\n"), done.stderr) == (0, 2, 40002, "")
        flag = hosts.shared / "up"
        argv = [*MPILAUNCH, *words, "sh", "-c", f"touch {flag}; exec sleep 300"]
        with hosts.popen(argv, stdin=subprocess.DEVNULL) as job:
            wait_until(flag.exists, "the rank runs")
            ssh.kill()
            _, errors = job.communicate(timeout=60)
        assert job.returncode == 125 and "error[node-lost]: node02: lost: " in errors, errors
        wait_until(lambda: not hosts.processes("node02"), "nothing is left")


def test_a_jump_host_is_passed_by_its_master(hosts: Hosts, path: Path) -> None:
    config = hosts.ssh / "config"
    before = config.read_text() if config.exists() else None
    way = f"Host node03\n  ProxyJump node02\nHost node02\n  {control_path(path).replace('=', ' ', 1)}\n"
    config.write_text(way + (before or ""))
    try:
        with master(hosts, "node02", path), hosts.sshd_with("node02", *CLOSED):
            addresses = ["sh", "-c", "echo ${SSH_CONNECTION%% *}"]
            assert ask(hosts, "ssh", "node03", addresses) == [["", hosts.address("node02"), 0]]
    finally:
        config.unlink() if before is None else config.write_text(before)


def test_a_master_that_refuses_more_sessions_leaves_a_connection_of_our_own(hosts: Hosts, path: Path) -> None:
    with hosts.sshd_with("node02", "MaxSessions=1"), master(hosts, "node02", path):
        options = {"ssh_options": [control_path(path)]}
        answers = ask(hosts, "ssh", [{"name": "node02"}] * 3, ["sh", "-c", "sleep 0.5; hostname"], **options)
    assert answers == [["", "node02", 0]] * 3


def test_a_refused_login_says_that_no_master_answers(hosts: Hosts, path: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as stale, hosts.sshd_with("node02", *CLOSED):
        for _ in range(2):
            ((cause, message, _),) = ask(hosts, "ssh", "node02", ssh_options=[control_path(path)])
            assert cause == "key-refused"
            assert message.endswith(f"; no master connection answers at {path}, `ssh -fNM node02` would start one"), message
            if not path.exists():
                stale.bind(str(path))


def test_no_other_users_socket_is_asked(hosts: Hosts, path: Path) -> None:
    """He could read, and answer, all that a session brings."""
    with master(hosts, "node01", path):
        os.chown(path, 65534, 65534)
        assert ask(hosts, "ssh", "node02", ssh_options=[control_path(path)]) == [["", "node02", 0]]
