"""Kinds of programs on two nodes of a real Slurm x ways in which their job ends x ways in which Slurm knows its processes: its
state and exit code are right, the allocation is free, and no process is left. `make test-slurm` runs some of the table, with
TABLE=all all of it.
"""

from __future__ import annotations

import datetime
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from tests.slurm.cluster import KILL_WAIT, Slurm
from tests.support.launching import MPILAUNCH, wait_until
from tests.support.torches import torch_python
from tests.support.two_machines import SECOND

SECONDS = 30.0
RANKS = 4
FREE = KILL_WAIT + 5.0
"""Seconds in which the allocation is free: the grace that Slurm leaves, and five."""

ALLREDUCE = """
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int one = 1, sum;
    MPI_Init(&argc, &argv);
    for (long turn = 0;; turn++) {
        MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (turn == 1) printf("up\\n"), fflush(stdout);
        usleep(20000);
    }
}
"""
TORCH = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for turn in range(1 << 20):
    dist.all_reduce(torch.ones(3))
    if turn == 1: print("up", flush=True)
    time.sleep(0.02)
"""
GRANDCHILD = "setsid sh -c \"trap '' TERM INT HUP; sleep 600\" & echo up; sleep 600"
"""Its grandchild leaves the group, and does not listen to SIGTERM."""


def _plain(slurm: Slurm) -> list[str]:
    return ["sh", "-c", "echo up; exec sleep 600"]


def _grandchild(slurm: Slurm) -> list[str]:
    return ["sh", "-c", GRANDCHILD]


def _torch(slurm: Slurm) -> list[str]:
    (slurm.shared / "ddp.py").write_text(TORCH)
    return [torch_python(), "ddp.py"]


def _mpi(family: str) -> Callable[[Slurm], list[str]]:
    def program(slurm: Slurm) -> list[str]:
        (slurm.shared / "allreduce.c").write_text(ALLREDUCE)
        subprocess.run([f"mpicc.{family}", "-o", f"allreduce.{family}", "allreduce.c"], cwd=slurm.shared, check=True)
        return [f"./allreduce.{family}"]

    return program


KINDS = {"plain": _plain, "grandchild": _grandchild, "openmpi": _mpi("openmpi"), "mpich": _mpi("mpich"), "torch": _torch}


def _scancel(slurm: Slurm, job: str) -> dict[str, str]:
    slurm.run("scancel", job)
    return {"JobState": "CANCELLED", "ExitCode": "143:0"}


def _step(slurm: Slurm, job: str) -> dict[str, str]:
    slurm.run("scancel", f"{job}.0")
    return {"JobState": "FAILED", "ExitCode": "125:0"}


def _suspend(slurm: Slurm, job: str) -> dict[str, str]:
    """Stop all of the job for longer than its daemons would wait for a head that is silent."""
    slurm.run("scontrol", "suspend", job)
    time.sleep(5)
    slurm.run("scontrol", "resume", job)
    time.sleep(1)
    assert job in slurm.queued() and not any("error" in line for line in slurm.lines(job))
    return _scancel(slurm, job)


def _requeue(slurm: Slurm, job: str) -> dict[str, str]:
    """End the job to run it again, which Slurm does in two minutes unless told otherwise."""

    def waits() -> bool:
        return slurm.describe(job)["JobState"] == "PENDING" and not slurm.processes()

    def runs_again() -> bool:
        time.sleep(0.5)  # Slurm refuses while it still completes the job
        return slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now").returncode != 0 and not waits()

    slurm.run("scontrol", "requeue", job)
    wait_until(waits, "the job waits again", SECONDS)
    slurm.output(job).unlink(missing_ok=True)
    wait_until(runs_again, f"the job runs again: {slurm.describe(job)}", SECONDS)
    wait_until(lambda: slurm.lines(job).count("up") == RANKS, f"the ranks run again: {slurm.lines(job)}", SECONDS)
    return _scancel(slurm, job)


def _daemon(slurm: Slurm, job: str) -> dict[str, str]:
    """Kill all that the job has on its second node."""
    slurm.run("sh", "-c", f"scontrol listpids {job} {SECOND} | awk 'NR > 1 {{print $1}}' | xargs kill -KILL", node=SECOND)
    return {"JobState": "FAILED", "ExitCode": "125:0"}


def _limit(slurm: Slurm, job: str) -> dict[str, str]:
    now = (datetime.datetime.now() + datetime.timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%S")
    assert slurm.run("scontrol", "update", f"JobId={job}", f"EndTime={now}").stderr == ""
    # slurmctld looks at the time limits every 30 s.
    wait_until(lambda: any("DUE TO TIME LIMIT" in line for line in slurm.lines(job)), "Slurm has ended the job", 60)
    return {"JobState": "TIMEOUT", "ExitCode": "143:0"}


def _preempted(slurm: Slurm, job: str) -> dict[str, str]:
    """Let a job that may preempt others want both nodes; Slurm lets the ranks have the grace of their partition."""
    other = slurm.sbatch("true", "--partition=urgent", "--nodes=2", "--exclusive")
    wait_until(lambda: other not in slurm.queued(), "the other job has run", SECONDS)
    return {"ExitCode": "143:0"}  # FAILED, or PREEMPTED if it has used its grace


def _node(slurm: Slurm, job: str) -> dict[str, str]:
    """Let Slurm hold the second node for failed."""
    slurm.run("scontrol", "update", f"JobId={job}", "Requeue=0")
    slurm.run("scontrol", "update", f"NodeName={SECOND}", "State=DOWN", "Reason=test")
    try:
        wait_until(lambda: job not in slurm.queued(), "the job has ended", SECONDS)
    finally:
        slurm.run("scontrol", "update", f"NodeName={SECOND}", "State=RESUME")
        wait_until(slurm.is_up, "both nodes take jobs again", SECONDS)
    return {"JobState": "NODE_FAIL"}


ENDS: dict[str, Callable[[Slurm, str], dict[str, str]]] = {
    "scancel": _scancel, "step": _step, "suspend": _suspend, "requeue": _requeue, "daemon": _daemon, "limit": _limit,
    "preempted": _preempted, "node": _node,
}  # fmt: skip
KILLS = ("step", "daemon")
"""Ends that kill all processes on the second node."""
WAYS = ("parents", "cgroups")
SOME = [
    *(("parents", "plain", "limit"), ("parents", "plain", "suspend"), ("parents", "grandchild", "scancel")),
    *(("parents", "openmpi", "daemon"), ("parents", "mpich", "step"), ("parents", "mpich", "preempted")),
    *(("parents", "torch", "requeue"), ("parents", "torch", "node")),
    *(("cgroups", "grandchild", "step"), ("cgroups", "openmpi", "scancel"), ("cgroups", "mpich", "daemon")),
    *(("cgroups", "plain", "node"), ("cgroups", "torch", "suspend"), ("cgroups", "grandchild", "preempted")),
]
TABLE = [*product(WAYS, KINDS, ENDS)] if os.environ.get("TABLE") == "all" else SOME


@pytest.mark.parametrize(("way", "kind", "end"), TABLE)
def test_a_job_ends_as_slurm_says_and_leaves_nothing(
    slurm: Slurm, slurm_of_cgroups: Slurm, way: str, kind: str, end: str
) -> None:
    slurm = {"parents": slurm, "cgroups": slurm_of_cgroups}[way]
    words = [*MPILAUNCH, "--heartbeat", "1", *KINDS[kind](slurm)]
    both = ("--partition=both", "--nodes=2", "--ntasks-per-node=2")
    job = slurm.sbatch(f"exec {shlex.join(words)}", *both, "--time=5", "--requeue")
    wait_until(lambda: slurm.lines(job).count("up") == RANKS, f"the ranks run: {slurm.lines(job)}", SECONDS)
    expected = ENDS[end](slurm, job)
    began = time.monotonic()
    wait_until(lambda: job not in slurm.queued() and not slurm.processes(), "the job is gone", 2 * FREE)
    assert time.monotonic() - began < FREE
    found: dict[str, Any] = slurm.describe(job)
    assert {name: found[name] for name in expected} == expected, slurm.lines(job)
    text = "\n".join(slurm.lines(job))
    if end in KILLS:  # nobody was left there to remove what they had
        slurm.run("sh", "-c", "rm -rf /tmp/* /dev/shm/*", node=SECOND)
    if end == "step":
        assert "n02: lost: STEP " in text and " ON n02 CANCELLED AT 20" in text
    elif end == "daemon":
        assert "error[node-lost]: n02: lost: " in text
    else:
        assert "error[preempted]: SIGTERM to " in text
