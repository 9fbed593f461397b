"""Independent commands on real hosts: each starts when its host is ready, and nothing of one host holds another."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import Hosts
from tests.support.launching import LIMIT, MPILAUNCH, QUICK_HEARTBEAT, wait_until
from tests.support.processes import guard_and_daemon_on

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("shared")]

THREE = ("-H", "node[01-03]", "--independent")
HANGS = "#!/bin/sh\nexec cat >/dev/null\n"
"""A login that hangs, as where a home directory is on a dead file server."""


@contextlib.contextmanager
def running(hosts: Hosts, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run mpilaunch beside the test, to its end."""
    with hosts.popen([*MPILAUNCH, *words], stdin=subprocess.DEVNULL) as job:
        try:
            yield job
        finally:
            job.kill()


def end(job: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    """Return exit code, sorted lines of stdout, and stderr."""
    out, errors = job.communicate(timeout=LIMIT)
    return job.returncode, sorted(out.splitlines()), errors


def lines_of(job: subprocess.Popen[str], count: int) -> list[str]:
    """Return the next lines of stdout, sorted."""
    assert job.stdout is not None
    return sorted(job.stdout.readline().strip() for _ in range(count))


def test_sigterm_to_the_processes_of_one_host_is_the_failure_of_that_host(hosts: Hosts) -> None:
    text = "touch up-$(hostname); until [ -e go ]; do sleep 0.02; done; hostname"
    with running(hosts, *THREE, "--wdir", os.getcwd(), "sh", "-c", text) as job:
        wait_until(lambda: len(list(Path.cwd().glob("up-*"))) == 3, "all commands run")
        guard, daemon = guard_and_daemon_on(hosts, "node02")
        command = [pid for pid, argv in hosts.processes("node02") if argv[-1] == text]
        for pid in (guard, daemon, *command):
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.5)
        Path("go").touch()
        code, out, errors = end(job)
    assert (code, sorted(out)) == (143, ["node01", "node03"])
    assert errors.startswith("error[hosts-failed]: node02: killed by SIGTERM"), errors


def test_a_window_of_one_is_a_rolling_run(hosts: Hosts) -> None:
    alone = "mkdir busy || echo beside another; sleep 0.2; rmdir busy; hostname"
    done = hosts.launch(*THREE, "--fanout", "1", "--wdir", os.getcwd(), "sh", "-c", alone)
    assert (done.returncode, done.stdout, done.stderr) == (0, "node01\nnode02\nnode03\n", "")


def test_the_next_host_begins_when_one_is_done(hosts: Hosts) -> None:
    wait = "until [ -e node03 ]; do sleep 0.02; done"
    text = f'touch $(hostname); case $(hostname) in node01) {wait};; node03) ls;; esac'
    done = hosts.launch(*THREE, "--fanout", "2", "--wdir", os.getcwd(), "sh", "-c", text)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["node01", "node02", "node03"], "")


def test_a_host_whose_login_hangs_holds_no_other(hosts: Hosts) -> None:
    with hosts.login_script("node02", HANGS), running(hosts, *THREE, "--start-timeout", "6", "hostname") as job:
        began = time.monotonic()
        assert lines_of(job, 2) == ["node01", "node03"]
        assert time.monotonic() - began < 5 and job.poll() is None, "they did not wait for the limit"
        code, out, errors = end(job)
    assert (code, out) == (1, [])
    assert errors.startswith("error[hosts-failed]: node02: no answer in time\n"), errors


def test_the_time_limit_counts_for_each_host(hosts: Hosts) -> None:
    """On one it ends the command, on one a login that hangs, and the third begins when these have left the window."""
    text = "case $(hostname) in node01) sleep 300;; *) hostname;; esac"
    with hosts.login_script("node02", HANGS):
        done = hosts.launch(*THREE, "--fanout", "2", "--timeout", "2.5", "sh", "-c", text)
    assert (done.returncode, done.stdout) == (124, "node03\n")
    assert done.stderr == "error[hosts-failed]: node[01-02]: time limit of 2.5 s exceeded\n"


def test_the_first_failure_ends_all_where_that_is_wanted(hosts: Hosts) -> None:
    """What the commands have started ends too, without the grace time, though no daemon is told of its end."""
    began = time.monotonic()
    text = "case $(hostname) in node02) until [ -e up ]; do sleep 0.02; done; exit 3;; *) touch up; sleep 300; true;; esac"
    words = ("--wdir", os.getcwd(), "--no-continue-on-error", "--grace", "120", "sh", "-c", text)
    done = hosts.launch(*THREE, "--fanout", "2", *words)
    assert (done.returncode, done.stdout) == (3, "")
    lines = ["1 of 3 hosts failed", "    node02: exit code 3", "    node01: stopped", "    node03: not started"]
    assert done.stderr == "error[hosts-failed]: " + "\n".join(lines) + "\n"
    assert time.monotonic() - began < 60


def test_a_host_that_is_not_reached_ends_all_where_that_is_wanted(hosts: Hosts) -> None:
    done = hosts.launch("-H", "node[01,09]", "--independent", "--no-continue-on-error", "sh", "-c", "sleep 300; true")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error[hosts-failed]: "), done.stderr
    assert "    node09: host name unknown\n" in done.stderr and "node09: not started" not in done.stderr, done.stderr


def test_an_interrupt_names_stopped_hosts_and_those_that_never_began(hosts: Hosts) -> None:
    with running(hosts, *THREE, "--fanout", "2", "sh", "-c", "echo up; exec sleep 300") as job:
        assert lines_of(job, 2) == ["up", "up"]
        job.send_signal(signal.SIGINT)
        code, _, errors = end(job)
    assert code == 130
    stopped = "error[interrupted]: SIGINT to mpilaunch\n    node[01-02]: stopped\n    node03: not started\n"
    assert errors.endswith(stopped), errors


def test_a_terminal_shows_how_many_hosts_are_done(hosts: Hosts) -> None:
    ours, theirs = pty.openpty()
    text = "test $(hostname) = node01 || until [ -e go ]; do sleep 0.05; done"
    words = [*MPILAUNCH, *THREE, "--wdir", os.getcwd(), "sh", "-c", text]
    with hosts.popen(words, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs) as job:
        os.close(theirs)
        shown = b""
        while b"1/3, waiting for node[02-03]" not in shown:
            shown += os.read(ours, 4096)
        Path("go").touch()
        assert job.wait(LIMIT) == 0
    os.close(ours)


def test_a_frozen_host_takes_only_its_own_place(hosts: Hosts) -> None:
    with hosts.pause("node01"):
        done = hosts.launch(*THREE, "--fanout", "1", "--ssh-option", "ConnectTimeout=2", "hostname")
    assert (done.returncode, done.stdout) == (1, "node02\nnode03\n")
    assert done.stderr.startswith("error[hosts-failed]: node01: no answer in time\n"), done.stderr


def test_failures_of_hosts_are_reported_once_each_equal_ones_together(hosts: Hosts) -> None:
    hosts.stop_sshd("node02")
    try:
        text = "case $(hostname) in node04) exit 0;; *) exit 3;; esac"
        done = hosts.launch("-H", "node[01-04]", "--independent", "sh", "-c", text)
        largest = hosts.launch("-H", "node[01-04]", "--independent", "--exit-code", "largest", "sh", "-c", text)
    finally:
        hosts.start_sshd("node02")
    message, *lines = done.stderr.splitlines()
    assert message == "error[hosts-failed]: 3 of 4 hosts failed"
    assert lines[:2] == ["    node[01,03]: exit code 3", "    node02: connection refused"]
    assert lines[-1].startswith("hint: is sshd running there?")
    assert (done.returncode in (1, 3), largest.returncode) == (True, 255)


def test_a_lost_host_is_reported_and_its_command_runs_to_its_end(hosts: Hosts, shared: Path) -> None:
    text = "touch up; until [ -e go ]; do sleep 0.02; done; touch done"
    words = ["-H", "node01", "--independent", *QUICK_HEARTBEAT, "--wdir", os.getcwd(), "sh", "-c", text]
    with running(hosts, *words) as job:
        wait_until((shared / "up").exists, "the command runs")
        hosts.link("node01", up=False)
        try:
            code, _, errors = end(job)
        finally:
            hosts.link("node01", up=True)
    assert code == 125 and errors.startswith("error[hosts-failed]: node01: lost: no sign of life for"), errors
    assert "; its command may still run" in errors
    (shared / "go").touch()
    wait_until((shared / "done").exists, "the command has run to its end")
    wait_until(lambda: not hosts.processes("node01"), "nothing of mpilaunch is left")


def test_an_interrupt_ends_what_runs_and_starts_nothing_more(hosts: Hosts, shared: Path) -> None:
    text = "touch $(hostname); sleep 300"
    with running(hosts, *THREE, "--fanout", "2", "--wdir", os.getcwd(), "sh", "-c", text) as job:
        wait_until(lambda: len(list(shared.iterdir())) == 2, "two commands run")
        job.send_signal(signal.SIGINT)
        code, _, errors = end(job)
    assert code == 130 and "error[interrupted]: SIGINT to mpilaunch" in errors
    assert sorted(path.name for path in shared.iterdir()) == ["node01", "node02"]
    assert not any(map(hosts.processes, hosts.names))


def test_an_interrupt_ends_a_login_that_hangs(hosts: Hosts) -> None:
    with hosts.login_script("node02", HANGS), running(hosts, *THREE, "hostname") as job:
        assert lines_of(job, 2) == ["node01", "node03"]
        job.send_signal(signal.SIGINT)
        code, out, errors = end(job)
        assert (code, out) == (130, []) and "error[interrupted]" in errors, errors
    wait_until(lambda: not hosts.processes("node02"), "nothing is left")


def test_hosts_that_start_late_get_all_of_stdin(hosts: Hosts) -> None:
    text = "".join(f"{number}\n" for number in range(200_000))
    done = hosts.launch(*THREE, "--fanout", "1", "--stdin", "all", "sh", "-c", "cksum; head -n 1", input=text)
    sums = {*done.stdout.splitlines()}
    assert (done.returncode, done.stderr, len(sums)) == (0, "", 1) and len(done.stdout.splitlines()) == 3
    assert sums.pop().split()[1] == str(len(text))


def test_a_command_that_reads_no_stdin_and_a_login_that_hangs_hold_nobodys_stdin(hosts: Hosts) -> None:
    words = [*THREE, "--stdin", "all", "--start-timeout", "6", "sh", "-c", "cat; hostname"]
    with hosts.login_script("node02", HANGS), hosts.popen([*MPILAUNCH, *words], stdin=subprocess.PIPE) as job:
        assert job.stdin is not None
        job.stdin.write("line\n")
        job.stdin.close()
        assert lines_of(job, 4) == ["line", "line", "node01", "node03"] and job.poll() is None
        job.stdin = None
        assert end(job)[0] == 1
