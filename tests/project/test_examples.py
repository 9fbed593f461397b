"""Every file of examples/ does what it says: on this machine, and on hosts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.hosts import CHECKOUT, Hosts
from tests.support.launching import MPILAUNCH, launch
from tests.support.processes import host_is_empty, kill_daemon
from tests.support.torches import torch_on, torch_python

EXAMPLES = CHECKOUT / "examples"


@pytest.fixture
def shared(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a new directory that the head and all hosts see, with a copy of the examples."""
    monkeypatch.chdir(tempfile.mkdtemp(dir=hosts.shared))
    shutil.copytree(EXAMPLES, "examples")
    return Path.cwd()


def here(*arguments: str) -> list[str]:
    """Run mpilaunch on this machine, in the checkout as it is; return the lines of a job that went well."""
    done = launch(*arguments, cwd=CHECKOUT)
    assert (done.code, done.words) == (0, "")
    return done.lines


def ran(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_no_example_is_forgotten() -> None:
    tests = Path(__file__).read_text()
    names = [path.name for path in EXAMPLES.iterdir() if path.is_file()]
    assert len(names) > 4
    assert [name for name in names if f"examples/{name}" not in tests and name != "README.md"] == []


# pipeline_server.py


def test_the_server_serves_here_and_ends_on_request() -> None:
    words = ["-H", "local:2,local:2", "--profile", "vllm", "--ready", "http://:18735/health", "examples/pipeline_server.py"]
    with subprocess.Popen([*MPILAUNCH, *words, "--port", "18735"], cwd=CHECKOUT, stderr=subprocess.PIPE, text=True) as job:
        assert job.stderr is not None
        assert any(line.startswith("note: ready: http://127.0.0.1:18735/health answers") for line in job.stderr)
        for path, answer in (("40", "41"), ("stop", "bye")):
            with urllib.request.urlopen(f"http://127.0.0.1:18735/{path}", timeout=20) as reply:
                assert reply.read().decode() == f"{answer}\n"
        assert (job.stderr.read(), job.wait(20)) == ("", 0)


# hello.py


def test_hello_here() -> None:
    host = os.uname().nodename
    lines = here("-np", "3", "examples/hello.py")
    assert lines == [f"hello from rank {rank} of 3 on {host} (rank {rank} of 3 there)" for rank in range(3)]


@pytest.mark.testbed
def test_hello_on_hosts(hosts: Hosts, shared: Path) -> None:
    lines = sorted(ran(hosts.launch("-H", "node[01-04]:2", "examples/hello.py")))
    assert lines == [f"hello from rank {r} of 8 on node{r // 2 + 1:02} (rank {r % 2} of 2 there)" for r in range(8)]


# ring_allreduce.py


def check_ring(lines: list[str], hosts: list[str], count: int) -> None:
    found = sorted(line.split(", ")[0] for line in lines)
    size = len(hosts)
    assert found == [f"rank {rank} of {size} on {host}: the sum of {count} numbers is right" for rank, host in enumerate(hosts)]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ring_here(size: int) -> None:
    check_ring(here("-np", str(size), "examples/ring_allreduce.py", "10007"), [os.uname().nodename] * size, 10007)


def test_ring_on_two_nodes_here() -> None:
    lines = here("-H", "local:2,local:2", "--tag", "rank", "examples/ring_allreduce.py")
    assert sorted(line[:4] for line in lines) == ["[0] ", "[1] ", "[2] ", "[3] "]
    check_ring([line[4:] for line in lines], [os.uname().nodename] * 4, 262144)


@pytest.mark.testbed
def test_ring_on_hosts(hosts: Hosts, shared: Path) -> None:
    lines = ran(hosts.launch("-H", "node01:2,node02:2", "examples/ring_allreduce.py", "100003"))
    check_ring(lines, ["node01", "node01", "node02", "node02"], 100003)


@pytest.mark.testbed
def test_ring_between_this_machine_and_a_host_without_a_copy(hosts: Hosts) -> None:
    program = (EXAMPLES / "ring_allreduce.py").read_text()
    check_ring(ran(hosts.launch("-q", "-H", "local,node03", "python3", "-c", program, "999")), ["head", "node03"], 999)


# smoke_test.sh


def smoke_test(hosts: Hosts, shared: Path) -> tuple[int, list[str]]:
    """Run examples/smoke_test.sh on the head; return its exit code and what it says."""
    launcher = shared / "mpilaunch"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(MPILAUNCH)} "$@"\n')
    launcher.chmod(0o755)
    (shared / "my.hosts").write_text("node[01-04]:2\n")
    done = hosts.run(["sh", "examples/smoke_test.sh", "my.hosts"], env={"MPILAUNCH": str(launcher)})
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


@pytest.mark.testbed
def test_smoke_test_passes(hosts: Hosts, shared: Path) -> None:
    code, lines = smoke_test(hosts, shared)
    assert (code, lines[-1]) == (0, "smoke test: all 5 checks passed"), lines
    assert [line for line in lines if line.startswith("ok ")] == [
        f"ok      {check}" for check in ("reach", "clocks", "pythons", "network", "failure")
    ]
    assert any(line.startswith("        node[01-04]: Linux ") for line in lines)


@pytest.mark.testbed
def test_smoke_test_finds_a_host_that_is_down(hosts: Hosts, shared: Path) -> None:
    hosts.stop_sshd("node03")
    try:
        code, lines = smoke_test(hosts, shared)
    finally:
        hosts.start_sshd("node03")
    assert (code, lines[-1]) == (1, "smoke test: FAILED: not every node of my.hosts can be reached")
    assert any("1 of 4 nodes: node03: connection refused" in line for line in lines)


@pytest.mark.testbed
def test_smoke_test_finds_two_hosts_that_do_not_reach_each_other(hosts: Hosts, shared: Path) -> None:
    route = ["unreachable", hosts.address("node01")]
    assert hosts.on("node03", ["ip", "route", "add", *route]).returncode == 0
    try:
        # The head is on another address: it still reaches all of them.
        code, lines = smoke_test(hosts, shared)
    finally:
        hosts.on("node03", ["ip", "route", "del", *route])
    assert (code, lines[-1]) == (1, "smoke test: FAILED: network"), lines


@pytest.mark.testbed
def test_smoke_test_finds_another_python(hosts: Hosts, shared: Path) -> None:
    other = '#!/bin/sh\ncase "$*" in *platform*) echo 3.7.1;; *) exec /usr/bin/env python3.real "$@";; esac\n'
    setup = 'mkdir /tmp/bin; ln -s $(readlink -f $(command -v python3)) /tmp/bin/python3.real; printf %s "$1" >/tmp/bin/python3'
    for name in hosts.names:
        text = other if name == "node02" else '#!/bin/sh\nexec /usr/bin/env python3.real "$@"\n'
        hosts.on(name, ["sh", "-ec", setup + "; chmod +x /tmp/bin/python3", "sh", text])
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MPILAUNCH_EXPORT", "PATH=/tmp/bin:/usr/bin:/bin")
            code, lines = smoke_test(hosts, shared)
    finally:
        for name in hosts.names:
            hosts.on(name, ["rm", "-r", "/tmp/bin"])
    assert (code, lines[-1]) == (1, "smoke test: FAILED: pythons"), lines
    assert "        node02: 3.7.1" in lines


# torch_ddp.py


def check_learned(lines: list[str]) -> None:
    """Check that four ranks trained one network to a small loss, on samples that no rank had seen."""
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step ")]
    assert len(losses) == 5
    assert losses[0] > 0.1 > 0.01 > losses[-1]
    last = re.fullmatch(r"4 ranks: loss (0\.\d{4}) on new samples, the same (\d+) parameters on all: True", lines[-1])
    assert last is not None, lines
    assert float(last[1]) < 0.01 and int(last[2]) > 4000


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.timeout(200)
def test_torch_learns_on_two_hosts(shared: Path, hosts: Hosts) -> None:
    with torch_on(hosts, ("node01", "node02")) as options:
        done = hosts.launch("-H", "node01:2,node02:2", *options, "examples/torch_ddp.py", timeout=180)
    # c10d likes to name its clients, and these hosts have no DNS to ask for the names of addresses.
    expected = "The hostname of the client socket cannot be retrieved"
    assert (done.returncode, [line for line in done.stderr.splitlines() if expected not in line]) == (0, [])
    check_learned(done.stdout.splitlines())


@pytest.mark.needs("torch")
@pytest.mark.slow
@pytest.mark.parametrize("words", [("torch_ddp.py",), ("torch_resume.py", "one.pt")], ids=lambda words: words[0])
def test_no_thread_of_gloo_is_left_when_python_ends(words: tuple[str, ...], tmp_path: Path) -> None:
    """One that is at work then, and meets the end of the interpreter, aborts its rank.

    Linux may still list a thread for a moment after it was joined: its number is cleared before it leaves the list.
    """
    program = """if True:
        import glob, runpy, sys, time
        del sys.argv[0]
        runpy.run_path(sys.argv[0], run_name="__main__")
        until = time.monotonic() + 5
        while True:
            names = []
            for path in glob.glob("/proc/self/task/*/comm"):
                try:
                    names.append(open(path).read().strip())
                except OSError:  # ended meanwhile
                    pass
            if not any("gloo" in name for name in names) or time.monotonic() > until:
                break
            time.sleep(0.02)
        print("threads:", *names)
    """
    done = launch("-np", "2", torch_python(), "-c", program, EXAMPLES / words[0], *words[1:], cwd=tmp_path)
    assert done.code == 0, done.words
    assert len(left := [line for line in done.lines if line.startswith("threads: ")]) == 2
    assert "gloo" not in " ".join(left)


@pytest.mark.testbed
def test_ranks_on_hosts_save_on_a_signal_and_continue(hosts: Hosts, shared: Path) -> None:
    options = ("-H", "node01:2,node02:1", "--checkpoint-prefix", "sets", "--checkpoint-interval", "1")
    words = (*options, "examples/save_on_signal.py")
    ended = hosts.launch("--timeout", "5", *words, "100000")
    assert ended.returncode == 124, ended.stderr
    newest = max(path for path in Path("sets").iterdir() if path.name.isdigit())
    saved = {path.name: int(path.read_text()) for path in newest.glob("state-*")}
    assert set(saved) == {"state-0", "state-1", "state-2"}
    lines = ran(hosts.launch(*words, str(max(saved.values()) + 5)))
    assert {f"rank {rank} begins at step {saved[f'state-{rank}']}" for rank in range(3)} <= set(lines)


# torch_resume.py


def losses(lines: Sequence[str]) -> dict[int, float]:
    """Return the loss of each step; of a step that was done twice, the second time's."""
    matches = [re.fullmatch(r"step (\d+): loss ([\d.]+)", line) for line in lines]
    return {int(match[1]): float(match[2]) for match in matches if match is not None}


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("words", "ranks"),
    [(("-H", "node[01-03]:2", "--spares", "1"), 4), (("-H", "node[01-02]:2", "--nnodes", "1:2"), 2)],
    ids=["on a spare", "on fewer hosts"],
)
def test_torch_continues_after_a_host_died(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], ranks: int) -> None:
    with Hosts(3) as own, torch_on(own, own.names) as options, monkeypatch.context() as place:
        place.chdir(own.shared)
        shutil.copytree(EXAMPLES, "examples")
        program = "examples/torch_resume.py"
        undisturbed = own.launch("-H", "node[01-02]:2", *options, program, "one.pt", timeout=180)
        assert undisturbed.returncode == 0, undisturbed.stderr
        command = [*MPILAUNCH, *words, "--max-restarts", "3", *options, program, "two.pt"]
        lines = []
        with Path("words").open("w") as stderr, own.popen(command, stderr=stderr) as job:
            assert job.stdout is not None
            for line in job.stdout:
                lines.append(line.rstrip())
                if line.startswith("step 50:"):
                    own.stop_sshd("node02")
                    kill_daemon(own, "node02")
        told = Path("words").read_text()
        assert job.wait() == 0, told
        assert all(host_is_empty(own, name) for name in own.names)
    assert "attempt 2 of 4 begins, with " in told
    (resumed,) = [line for line in lines if line.startswith("continues after step ")]
    match = re.fullmatch(rf"continues after step (\d+) on {ranks} ranks", resumed)
    assert match is not None and 50 <= int(match[1]) < 150
    found, expected = losses(lines), losses(undisturbed.stdout.splitlines())
    assert list(found) == list(expected) == list(range(1, 201))
    if ranks == 4:
        # The sums of floats that come from several hosts differ in their last digits from run to run.
        assert found == pytest.approx(expected, rel=0.01, abs=1e-4), "the loss curve goes on as if nothing had happened"
    assert found[200] < 0.01 < found[1]
