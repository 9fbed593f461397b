"""The testbed keeps its promises: the hosts are apart, bare, and gone without a trace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import hosts as testbed
from tests.support.hosts import CHECKOUT, Hosts
from tests.support.launching import wait_until
from tests.support.processes import everything, left_behind

pytestmark = pytest.mark.testbed


def ssh(hosts: Hosts, host: str, command: str) -> str:
    done = hosts.run(["ssh", host, command])
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_each_host_has_its_own_name_processes_and_tmp() -> None:
    # New hosts: what another test left in /tmp is none of ours.
    with Hosts(2) as hosts:
        for name in hosts.names:
            assert ssh(hosts, name, f"hostname; ls /tmp; echo {name} >/tmp/mine; ls /proc | grep -c ^1$") == f"{name}\n1"
        assert hosts.run(["hostname"]).stdout == "head\n"
        for name in hosts.names:
            assert hosts.on(name, ["cat", "/tmp/mine"]).stdout == f"{name}\n"


def test_hosts_see_nothing_of_the_project_and_share_one_directory(hosts: Hosts) -> None:
    (hosts.shared / "note").write_text("from the head")
    assert ssh(hosts, "node02", f"ls -A {CHECKOUT} 2>/dev/null; cat {hosts.shared}/note") == "from the head"
    found = ssh(hosts, "node02", "command -v python3; python3 -c 'import mpilaunch' 2>&1 | tail -1")
    assert found == "/usr/bin/python3\nModuleNotFoundError: No module named 'mpilaunch'"


def test_hosts_reach_each_other_and_nothing_else(hosts: Hosts) -> None:
    neighbour = hosts.address("node02")
    talk = f"(: >/dev/tcp/{neighbour}/22) && (: >/dev/tcp/head/1) 2>&1 | grep -o 'Connection refused' | head -1"
    assert hosts.on("node01", ["bash", "-c", talk]).stdout == "Connection refused\n"
    assert hosts.on("node01", ["ip", "route", "show", "default"]).stdout == ""


def test_sshd_stops_and_starts(hosts: Hosts) -> None:
    hosts.stop_sshd("node03")
    refused = hosts.run(["ssh", "node03", "true"])
    hosts.start_sshd("node03")
    assert "Connection refused" in refused.stderr
    assert ssh(hosts, "node03", "echo back") == "back"


def test_link_and_pause_make_a_host_silent(hosts: Hosts) -> None:
    knock = ["timeout", "0.3", "bash", "-c", "read -r line </dev/tcp/node04/22 && echo $line"]
    assert hosts.run(knock).stdout.startswith("SSH-2.0")
    hosts.link("node04", up=False)
    assert hosts.run(knock).stdout == ""
    hosts.link("node04", up=True)
    with hosts.pause("node04"):
        assert hosts.run(knock).stdout == ""
    assert ssh(hosts, "node04", "echo back") == "back"


def test_processes_are_those_of_one_host(hosts: Hosts) -> None:
    sleeper = subprocess.Popen(hosts.inside("node01", ["sh", "-c", "echo up; exec sleep 60"]), stdout=subprocess.PIPE)
    assert sleeper.stdout is not None and sleeper.stdout.readline() == b"up\n"
    # The shell has spoken; it becomes `sleep` in its own time, and has no command line for a moment.
    wait_until(lambda: [argv[-1] for _, argv in hosts.processes("node01")] == ["60"], "the only process is `sleep`")
    ((pid, _),) = hosts.processes("node01")
    assert hosts.processes("node02") == []
    os.kill(pid, signal.SIGKILL)
    sleeper.wait(10)
    sleeper.stdout.close()


def test_a_killed_run_leaves_no_host_behind() -> None:
    script = "from tests.support.hosts import Hosts; hosts = Hosts(2).__enter__(); print(hosts.shared, flush=True); input()"
    before = everything()
    argv = [sys.executable, "-c", script]
    run = subprocess.Popen(argv, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdin and run.stdout
    shared = Path(run.stdout.readline().strip())
    assert shared.is_dir()
    run.kill()
    run.wait(10)
    run.stdin.close()
    run.stdout.close()
    shutil.rmtree(shared.parent)
    assert left_behind(before) == {}


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program, path: None if program in ("ip", "/usr/sbin/sshd") else program)
    with pytest.raises(RuntimeError, match="apt-get install iproute2 openssh-server"):
        testbed.Hosts(1).__enter__()


def test_left_behind_tells_of_a_process_in_a_session_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.processes.GRACE", 0.0)
    before = everything()
    stray = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        assert stray.pid in left_behind(before)
    finally:
        stray.kill()
        stray.wait()
    assert left_behind(before) == {}


def test_an_mpi_program_that_hangs_after_its_last_line_is_repeated(hosts: Hosts, shared: Path) -> None:
    script = "echo run >>runs; echo line; [ $(wc -l <runs) -gt 1 ] || exec sleep 600"
    done = hosts.run_mpi(["sh", "-c", script], 1, patience=0.6)
    assert (done.returncode, done.stdout, (shared / "runs").read_text()) == (0, "line\n", "run\nrun\n")
