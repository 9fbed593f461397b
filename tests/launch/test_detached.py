"""Jobs without a terminal: they outlive it, their output and end are kept, and nothing of them is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support.failures import SIGNALS, proves
from tests.support.hosts import Hosts
from tests.support.launching import (
    MPILAUNCH,
    Launched,
    environment,
    finish,
    launching,
    script,
    sh,
    wait_for_files,
    wait_gone,
    wait_until,
)
from tests.support.processes import everything, ours
from tests.support.terminals import terminal

STAY = "echo out $RANK; echo err $RANK >&2; echo $$ > pid-$RANK; while [ ! -e go ]; do sleep 0.05; done; echo went on"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Keep the jobs of a test in a directory of its own; see that no process of them is left."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = everything()
    yield tmp_path / "state"
    wait_until(lambda: not ours(before), "nothing is left")


def run(*words: str, cwd: Path | None = None, stdin: IO[bytes] | int = subprocess.DEVNULL) -> Launched:
    """Run a command line to its end; the job may run on."""
    done = subprocess.run(
        [*MPILAUNCH, *words], capture_output=True, cwd=cwd, env=environment(), stdin=stdin, timeout=60, check=False
    )
    return Launched(done.returncode, done.stdout, done.stderr)


def detached(folder: Path, *words: str, ranks: int = 2) -> str:
    """Start a job; return its id."""
    done = run("--detach", "-np", str(ranks), *words, cwd=folder)
    assert done.code == 0 and re.fullmatch(rb"[0-9a-f]{16}\n", done.out) and done.words == "", done
    return done.out.decode().strip()


def pids(folder: Path, count: int = 2) -> list[int]:
    return [int(text) for text in wait_for_files(*(folder / f"pid-{rank}" for rank in range(count)))]


def jobs() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(run("jobs", "--json").out)
    return data


def test_a_job_continues_and_its_output_and_end_are_kept(tmp_path: Path, state: Path) -> None:
    job = detached(tmp_path, "--name", "night", *sh(f"{STAY}; sleep 0.3; exit $RANK"))
    ranks = pids(tmp_path)
    head = next(each["pid"] for each in jobs()["jobs"] if each["id"] == job)
    assert os.getsid(head) not in (os.getsid(0), head) and os.readlink(f"/proc/{head}/fd/0") == os.devnull
    wait_until(lambda: run("logs", job).lines == ["out 0", "out 1"], "both have printed")
    kept = run("logs", "night", "--ranks", "1")
    assert (kept.lines, kept.words) == (["out 1"], "err 1\n")
    (tmp_path / "go").touch()
    assert run("wait", job[:8]).code == 1
    wait_gone(*ranks, head)
    kept = run("logs", "-f", job)
    assert sorted(kept.lines) == ["out 0", "out 1", "went on", "went on"]
    assert "error[rank-failed]: rank 1 on localhost exited with code 1" in kept.words
    assert run("wait", "night").code == 1, "also afterwards"
    (ended,) = jobs()["ended"]
    assert (ended["id"], ended["exit_code"], ended["signal"], ended["lost"]) == (job, 1, None, "")
    assert re.search(rf"(?m)^{job[:6]} +night +exit code 1 ", run("jobs").out.decode())
    files = list(Path(ended["folder"]).iterdir())
    assert {file.name for file in files} == {"job", "end", "lock", "output.000001", "report.json"}
    assert all(file.stat().st_mode & 0o077 == 0 for file in (*files, Path(ended["folder"])) if file.name != "report.json")
    assert json.loads((Path(ended["folder"]) / "report.json").read_text())["verdict"]["cause"] == "rank-failed"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("no-such-program",), 1, "error[start-program-missing]: "),
        (("--detach", "--np", "x", "true"), 2, "error[option-value]: "),
    ],
)
def test_a_job_that_fails_at_its_start_is_reported_at_once(
    tmp_path: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    done = run("--detach", *words, cwd=tmp_path)
    assert done.code == code and says in done.words
    assert not re.search(rb"[0-9a-f]{16}", done.out), "there is no job to look for"


def test_following_shows_what_comes_and_ends_with_the_job(tmp_path: Path) -> None:
    job = detached(tmp_path, *sh(STAY))
    pids(tmp_path)
    with launching("attach", job) as leaves:
        assert leaves.stderr is not None and b"Ctrl-C leaves it" in leaves.stderr.readline()
        assert leaves.stdout is not None and leaves.stdout.readline().startswith(b"out ")
        leaves.send_signal(signal.SIGINT)
        done = finish(leaves)
    assert done.code == 0 and done.words.endswith(f"note: job {job} keeps running\n")
    with launching("attach", job) as stays:
        assert stays.stdout is not None and stays.stdout.readline().startswith(b"out ")
        (tmp_path / "go").touch()
        done = finish(stays)
    assert done.code == 0 and done.lines[-2:] == ["went on"] * 2


@proves(
    "terminal-gone", SIGNALS, "the terminal of a detached job is closed", finder="nobody", says="nothing", code="the job's",
    within=10,
)  # fmt: skip
def test_it_outlives_its_terminal(tmp_path: Path) -> None:
    """A shell on a terminal of its own starts the job; then the terminal goes."""
    command = f"{' '.join(MPILAUNCH)} --detach -np 2 sh -c '{STAY}'; echo started; sleep 60"
    with terminal("sh", "-c", command, cwd=tmp_path) as screen:
        said = screen.read_until(b"started\r\n")
        screen.close()
        assert screen.process.wait(timeout=20) == -signal.SIGHUP
    ranks = pids(tmp_path)
    time.sleep(0.3)
    assert all(os.path.exists(f"/proc/{pid}") for pid in ranks)
    (job,) = [each for each in jobs()["jobs"] if each["state"] == "running" and each["id"].encode() in said]
    (tmp_path / "go").touch()
    assert run("wait", job["id"]).code == 0
    assert sorted(run("logs", job["id"]).lines) == ["out 0", "out 1", "went on", "went on"]


def test_an_interrupt_during_the_start_ends_the_job(tmp_path: Path) -> None:
    agent = script(tmp_path / "agent", "#!/bin/sh\necho $$ > pid-0\nexec sleep 100\n")
    with launching("--detach", "--agent", f"{agent} {{host}} {{command}}", "-H", "far", "true", cwd=tmp_path) as process:
        pids(tmp_path, 1)
        process.send_signal(signal.SIGINT)
        done = finish(process)
    assert done.code == 130 and "error[interrupted]: SIGINT to mpilaunch" in done.words


def test_standard_descriptors_may_be_closed(tmp_path: Path) -> None:
    command = f"exec 0<&- 1>&- 2>&-; {' '.join(MPILAUNCH)} --detach --name closed -np 1 sh -c 'echo out; echo err >&2'"
    assert subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment(), timeout=60, check=False).returncode == 0
    assert run("wait", "closed").code == 0
    kept = run("logs", "closed")
    assert (kept.out, kept.err) == (b"out\n", b"err\n")


LIST = b"of the script\n"


@pytest.mark.parametrize(("words", "gets"), [((), b""), (("--stdin", "0"), LIST)], ids=["by default", "asked for"])
def test_what_a_script_reads_is_not_taken_from_it(tmp_path: Path, words: tuple[str, ...], gets: bytes) -> None:
    (tmp_path / "input").write_bytes(LIST)
    with open(tmp_path / "input", "rb", buffering=0) as script_input:
        done = run("--detach", "-np", "1", *words, *sh("cat; sleep 0.2"), stdin=script_input)
        job = done.out.decode().strip()
        assert (run("wait", job).code, run("logs", job).out) == (0, gets)
        assert script_input.read() == (b"" if gets else LIST)


@proves(
    "detached-killed", SIGNALS, "SIGKILL to the mpilaunch of a detached job", finder="the process that keeps it",
    says="`error[job-gone]: the mpilaunch of job ID was killed by signal 9`, to `mpilaunch wait ID`", code="137", within=10,
)  # fmt: skip
def test_a_killed_head_is_reported(tmp_path: Path) -> None:
    job = detached(tmp_path, *sh(STAY))
    ranks = pids(tmp_path)
    os.kill(next(each["pid"] for each in jobs()["jobs"] if each["id"] == job), signal.SIGKILL)
    done = run("wait", job)
    assert done.code == 137 and done.words.startswith(f"error[job-gone]: the mpilaunch of job {job} was killed by signal 9\n")
    wait_gone(*ranks)
    assert run("logs", job).lines == ["out 0", "out 1"]


def test_a_job_that_is_not_detached_is_waited_for_too(tmp_path: Path) -> None:
    with launching("-np", "2", "--name", "attached-one", *sh(f"{STAY}; exit 4"), cwd=tmp_path) as process:
        pids(tmp_path)
        with launching("wait", "attached-one") as waits:
            time.sleep(0.5)
            (tmp_path / "go").touch()
            assert finish(waits).code == 4
        assert finish(process).code == 4
    done = run("logs", "attached-one")
    assert done.code == 2 and done.words.startswith("error[job-unknown]: no detached job 'attached-one' of yours is kept")


def test_a_pager_may_take_its_time(tmp_path: Path) -> None:
    job = detached(tmp_path, *sh("seq 100000"), ranks=1)
    assert run("wait", job).code == 0
    impatient = "from mpilaunch.head import safe_files; safe_files.PATIENCE = 0.1; from mpilaunch.cli.main import main; "
    command = [sys.executable, "-c", f"import sys; {impatient}sys.exit(main(['logs', {job!r}]))"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as logs:
        time.sleep(1)
        done = finish(logs)
    assert (done.code, done.words, done.out) == (0, "", b"".join(b"%d\n" % number for number in range(1, 100_001)))


def test_much_output_is_kept_whole_and_in_order(tmp_path: Path) -> None:
    job = detached(tmp_path, *sh("seq 200000 | sed s/^/$RANK:/; seq 1000 | sed s/^/$RANK:/ >&2"))
    assert run("wait", job).code == 0
    kept = run("logs", job)
    for text, count in ((kept.out, 200_000), (kept.err, 1000)):
        for rank in (0, 1):
            lines = [line for line in text.decode().splitlines() if line.startswith(f"{rank}:")]
            assert lines == [f"{rank}:{number}" for number in range(1, count + 1)]


@pytest.mark.testbed
def test_a_job_on_other_hosts_continues_without_its_login(hosts: Hosts, shared: Path) -> None:
    stay = "echo $$ > pid-$RANK; while [ ! -e go ]; do sleep 0.05; done; echo $RANK went on"
    env = {"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]}
    begun = hosts.launch("--detach", "-H", "node01,node02", *sh(stay), env=env)
    assert (begun.returncode, begun.stderr) == (0, "")
    wait_for_files(shared / "pid-0", shared / "pid-1")
    shown = hosts.launch("stack", begun.stdout.strip(), env=env)
    assert re.search(r"(?m)^(rank 0 on node01|ranks 0-1 on node\[01-02\]): (idle, waits|busy)", shown.stdout)
    (shared / "go").touch()
    assert hosts.launch("wait", begun.stdout.strip(), env=env).returncode == 0
    kept = hosts.launch("logs", begun.stdout.strip(), env=env)
    assert sorted(kept.stdout.splitlines()) == ["0 went on", "1 went on"]
