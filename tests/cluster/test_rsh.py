"""The real mpirun and mpiexec with mpilaunch-rsh for their agent, over two pods.

Their daemons end before they have reaped the ranks of a job that fails: where a pod's first process reaps nothing, these stay
zombies, whatever the agent is. So the pods are as in the examples' manifest, and share a process namespace.
"""

from __future__ import annotations

import pytest

from tests.cluster.images import MPI, PROGRAMS
from tests.cluster.jobs import Jobs
from tests.cluster.kubectls import KUBECTLS
from tests.cluster.launchers import LINES, SETTINGS
from tests.cluster.pods import Done


def run(jobs: Jobs, mpi: str, kubectl: str, *program: str) -> Done:
    done = jobs.launcher.run(*LINES[mpi], *program, env={**SETTINGS, "MPILAUNCH_KUBECTL": KUBECTLS[kubectl]})
    assert "mpilaunch-rsh" not in done.err
    return done


@pytest.mark.parametrize("kubectl", KUBECTLS)
@pytest.mark.parametrize("mpi", MPI)
def test_output_and_exit_code_come_back(sharing_jobs: Jobs, mpi: str, kubectl: str) -> None:
    done = run(sharing_jobs, mpi, kubectl, "hostname")
    assert (done.code, done.lines) == (0, ["job-worker-0"] * 2 + ["job-worker-1"] * 2), done.err
    done = run(sharing_jobs, mpi, kubectl, "sh", "-c", "exit 7")
    assert done.code == 7, done.err


@pytest.mark.parametrize("kubectl", KUBECTLS)
@pytest.mark.parametrize("mpi", MPI)
def test_an_mpi_program_is_one_world_over_two_pods(sharing_jobs: Jobs, mpi: str, kubectl: str) -> None:
    done = run(sharing_jobs, mpi, kubectl, f"{PROGRAMS}/ring.{mpi}", "4")
    places = [f"{rank} of 4, {rank // 2} of 2 on job-worker-{rank % 2}" for rank in range(4)]
    assert [line for line in done.lines if " of 4, " in line] == places, done.err
    assert done.code == 0 or mpi == "mpich", done.err
