"""Jobs from a launcher's pod with the least Role: their output, their exit code, MPI over two pods, what operators set."""

from __future__ import annotations

import pytest

from mpilaunch.errors import ExitCode
from tests.cluster.images import MPI, PROGRAMS
from tests.cluster.jobs import LATER, Jobs
from tests.cluster.kubectls import KUBECTLS

HOSTS = "--host=job-worker-0:2,job-worker-1:2"
PLACES = [f"{rank} job-worker-{rank // 2}" for rank in range(4)]
SHOW = "echo $RANK $(hostname)"
@pytest.mark.parametrize("kubectl", KUBECTLS)
def test_output_and_exit_code_come_back(jobs: Jobs, kubectl: str) -> None:
    env = {"MPILAUNCH_KUBECTL": KUBECTLS[kubectl]}
    done = jobs.launch(HOSTS, "sh", "-c", f"{SHOW}; [ $RANK != 3 ] || {{ {LATER}; exit 7; }}", env=env)
    assert (done.code, done.lines) == (7, PLACES), done.err
    assert "rank 3 on job-worker-1 exited with code 7" in done.err


@pytest.mark.parametrize("kubectl", KUBECTLS)
@pytest.mark.parametrize("mpi", MPI)
def test_an_mpi_program_is_one_world_over_two_pods(jobs: Jobs, mpi: str, kubectl: str) -> None:
    env = {"MPILAUNCH_KUBECTL": KUBECTLS[kubectl]}
    done = jobs.launch("--timeout=10", HOSTS, f"{PROGRAMS}/ring.{mpi}", "4", env=env)
    places = [f"{rank} of 4, {rank % 2} of 2 on job-worker-{rank // 2}" for rank in range(4)]
    assert done.lines == places, done.err
    # Over hosts, this MPICH hangs in MPI_Finalize when all has been printed, whoever launches it (docs/mpi.md).
    assert done.code in ((0, ExitCode.TIMEOUT) if mpi == "mpich" else (0,)), done.err


@pytest.mark.parametrize("kubectl", KUBECTLS)
def test_daemons_call_back(jobs: Jobs, kubectl: str) -> None:
    done = jobs.launch("--call-back=always", HOSTS, "sh", "-c", SHOW, env={"MPILAUNCH_KUBECTL": KUBECTLS[kubectl]})
    assert (done.code, done.lines, done.err) == (0, PLACES, "")


def test_job_after_job_leaves_nothing(jobs: Jobs) -> None:
    for code in (0, 5, 0):
        done = jobs.launch(HOSTS, "sh", "-c", f"{SHOW}; sleep 600 & setsid sleep 600 & exit {code}")
        assert done.code == code, done.err
