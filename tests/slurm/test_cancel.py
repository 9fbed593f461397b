"""What Slurm does to the processes of a job: the ranks get each signal once and keep their grace, and nothing is left."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.slurm.cluster import KILL_WAIT, Slurm
from tests.support.launching import MPILAUNCH, wait_until
from tests.support.two_machines import NODE

RANKS = 2
CLEANING = 2.0
"""Seconds that a rank takes to clean up."""
SECONDS = 8.0
"""Within these a job is gone whose ranks take CLEANING; less than KILL_WAIT."""
RANK = f"""
import os, signal, time
counts = {{}}
def count(number, frame):
    counts[number] = counts.get(number, 0) + 1
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
    signal.signal(number, count)
rank = os.environ["RANK"]
print("up", rank, flush=True)
while not counts.get(signal.SIGTERM) and not counts.get(signal.SIGINT):
    time.sleep(0.01)
print("cleaning", rank, flush=True)
until = time.monotonic() + {CLEANING}
while time.monotonic() < until:
    time.sleep(0.01)  # another signal would be counted
print("cleaned", rank, sorted((int(number), times) for number, times in counts.items()), flush=True)
"""
DEAF = ("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")


@pytest.fixture(scope="module", autouse=True)
def _rank(made_slurm: Slurm) -> Iterator[None]:
    (made_slurm.shared / "rank.py").write_text(RANK)
    yield


def command(*options: str, program: Sequence[str] = ("/usr/bin/env", "python3", "rank.py")) -> str:
    """Return a launch of the ranks as text for a batch script."""
    words = [*MPILAUNCH, "-np", str(RANKS), *options, *program]
    return " ".join(f'"{word}"' for word in words)


def begin(slurm: Slurm, text: str, *options: str) -> str:
    """Submit a job and wait until its ranks run; return its id."""
    job = slurm.sbatch(text, "--ntasks", str(RANKS), *options)
    wait_until(lambda: count(slurm, job, "up") == RANKS, f"the ranks of job {job} run: {slurm.lines(job)}")
    return job


def count(slurm: Slurm, job: str, word: str) -> int:
    return sum(line.split()[0] == word for line in slurm.lines(job) if line)


def scancel(slurm: Slurm, *words: str) -> None:
    done = slurm.run("scancel", *words)
    assert (done.returncode, done.stderr) == (0, "")


def gone(slurm: Slurm, seconds: float = SECONDS) -> None:
    """Wait until neither the queue nor the node has anything of a job."""
    began = time.monotonic()
    wait_until(lambda: not slurm.queued(), "squeue is empty", seconds)
    wait_until(lambda: not slurm.processes(), "no process of the job is left", seconds - (time.monotonic() - began))


def check_cleaned(slurm: Slurm, job: str, *signals: tuple[int, int]) -> list[str]:
    """Every rank had these (signal, times), and its grace; return what else the job has written."""
    lines = slurm.lines(job)
    assert sorted(line for line in lines if line.startswith("cleaned")) == [
        f"cleaned {rank} {list(signals)}" for rank in range(RANKS)
    ], lines
    return [line for line in lines if line.split()[0] not in ("up", "cleaning", "cleaned")]


def test_scancel_is_one_sigterm_for_each_rank_and_its_grace(slurm: Slurm) -> None:
    job = begin(slurm, f"exec {command()}")
    scancel(slurm, job)
    gone(slurm)
    others = check_cleaned(slurm, job, (15, 1))
    # The head and the daemon both have it; either may be the first to report it.
    (receiver,) = {"to mpilaunch", "to the processes on n01"} & {line.partition("SIGTERM ")[2] for line in others}
    assert others[1:] == [
        f"note: SIGTERM {receiver}: the ranks have 10 s to end; SIGINT kills them now",
        f"error[preempted]: SIGTERM {receiver}",
        "    ranks 0-1 had succeeded",
    ]
    assert "CANCELLED" in others[0], "Slurm's own"
    found = slurm.describe(job)
    assert (found["JobState"], found["ExitCode"]) == ("CANCELLED", "143:0")


def test_a_batch_script_that_outlives_sigterm_reads_the_exit_code(slurm: Slurm) -> None:
    job = begin(slurm, f"{command()} & trap 'kill -TERM $!' TERM; wait; wait $!; echo code $?")
    scancel(slurm, job)
    gone(slurm)
    # From Slurm and from the script's own trap: two, of which mpilaunch passes on none.
    check_cleaned(slurm, job, (15, 1))
    assert slurm.lines(job)[-1] == "code 143"


def test_ranks_keep_their_grace_where_the_batch_shell_dies_of_sigterm(slurm: Slurm) -> None:
    job = begin(slurm, f"{command()}; echo never")
    scancel(slurm, job)
    gone(slurm)
    assert "never" not in check_cleaned(slurm, job, (15, 1))


@pytest.mark.parametrize("options", [("--batch",), ("--full",)], ids=["--batch", "--full"])
@pytest.mark.parametrize(("name", "number"), [("USR1", 10), ("USR2", 12)])
def test_scancel_with_a_signal_reaches_each_rank_once(slurm: Slurm, options: tuple[str, ...], name: str, number: int) -> None:
    job = begin(slurm, f"exec {command()}")
    scancel(slurm, *options, f"--signal={name}", job)
    time.sleep(1.0)  # what ends a rank or comes twice would by now
    assert (count(slurm, job, "cleaning"), job in slurm.queued()) == (0, True)
    scancel(slurm, job)
    gone(slurm)
    check_cleaned(slurm, job, (number, 1), (15, 1))


@pytest.mark.parametrize(("name", "code", "signals"), [("INT", 130, (2, 1)), ("HUP", 129, (15, 1)), ("TERM", 143, (15, 1))])
def test_scancel_with_a_signal_that_ends_the_job(slurm: Slurm, name: str, code: int, signals: tuple[int, int]) -> None:
    job = begin(slurm, f"exec {command()}")
    scancel(slurm, "--full", f"--signal={name}", job)
    gone(slurm)
    others = check_cleaned(slurm, job, signals)
    assert f"SIG{name} to mpilaunch" in others[-2]
    assert slurm.describe(job)["ExitCode"] == f"{code}:0"


def test_the_time_limit_leaves_the_ranks_their_grace(slurm: Slurm) -> None:
    job = begin(slurm, f"exec {command()}", "--time=5")
    now = (datetime.datetime.now() + datetime.timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%S")
    assert slurm.run("scontrol", "update", f"JobId={job}", f"EndTime={now}").stderr == ""
    # slurmctld looks at the time limits every 30 s.
    wait_until(lambda: count(slurm, job, "cleaning") == RANKS, "Slurm has sent SIGTERM", 60)
    gone(slurm)
    others = check_cleaned(slurm, job, (15, 1))
    assert "DUE TO TIME LIMIT" in others[0]
    found = slurm.describe(job)
    assert (found["JobState"], found["ExitCode"]) == ("TIMEOUT", "143:0")


def test_ranks_that_ignore_sigterm_are_killed_after_the_grace_of_mpilaunch(slurm: Slurm) -> None:
    job = begin(slurm, f"exec {command('--grace', '2', program=DEAF)}")
    began = time.monotonic()
    scancel(slurm, job)
    gone(slurm)
    assert time.monotonic() - began > 1.9
    assert "error[preempted]: SIGTERM" in "\n".join(slurm.lines(job))
    assert slurm.describe(job)["ExitCode"] == "143:0"


def test_slurm_kills_everything_after_its_own_wait(slurm: Slurm) -> None:
    job = begin(slurm, f"exec {command('--grace', '600', program=DEAF)}")
    began = time.monotonic()
    scancel(slurm, job)
    gone(slurm, 3 * KILL_WAIT)
    assert time.monotonic() - began > KILL_WAIT - 1
    assert "error[" not in "\n".join(slurm.lines(job)), "nobody was left to write it"
    assert slurm.describe(job)["ExitCode"] == "0:9"
    # Nobody was left to remove the directories of the sockets either; a job of the user does, that of a daemon a minute later.
    of_heads, of_daemon = slurm.run("ls", "-A", "/tmp").stdout.split()
    assert of_heads == "mpilaunch-0"
    slurm.run("touch", "--date=2 minutes ago", f"/tmp/{of_daemon}")
    slurm.sbatch(f"exec {command(program=('true',))}", "--ntasks", str(RANKS))
    gone(slurm)
    assert slurm.run("ls", "-A", "/tmp").stdout == ""


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_step_on_the_head_s_own_node_keeps_the_grace_too(slurm: Slurm, cancelled: bool) -> None:
    program = ("/usr/bin/env", "python3", "rank.py") if cancelled else ("sh", "-c", 'echo "up $RANK"')
    words = command("-H", f"{NODE}:2", "--agent", "slurm", program=program)
    job = begin(slurm, words)
    if cancelled:
        slurm.run("scancel", job)
        wait_until(lambda: count(slurm, job, "cleaned") == RANKS, f"the ranks have cleaned up: {slurm.lines(job)}", SECONDS)
    else:
        wait_until(lambda: not slurm.queued(), "the job is over")
