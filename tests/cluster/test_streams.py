"""Streams are cut in the middle of a job: the API server or the kubelet is killed and starts again, or a kubectl is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.cluster.images import MPI
from tests.cluster.jobs import Jobs
from tests.cluster.kubectls import KUBECTLS
from tests.cluster.launchers import LINES, SETTINGS
from tests.cluster.pods import Done, finish

GO = "/tmp/go"
PROGRAM = f"rm -f {GO}; n=0; until [ -e {GO} ]; do echo $(hostname) $n; n=$((n + 1)); sleep 0.05; done; echo end"
"""Counts until the test lets it end."""


def restart_server(jobs: Jobs) -> None:
    """Kill the API server, and with it all streams; start it again."""
    jobs.cluster.restart("kube-apiserver")


def restart_kubelet(jobs: Jobs) -> None:
    """Kill the kubelet, through which all streams go to containerd; start it again."""
    jobs.cluster.restart("kubelet")


def kill_kubectl(jobs: Jobs) -> None:
    """Kill the kubectl that leads to one of the pods."""
    (kubectl,) = jobs.launcher.find("kubectl exec -i job-worker-1 ")
    os.kill(kubectl, signal.SIGKILL)


def cut(jobs: Jobs, process: subprocess.Popen[bytes], how: Callable[[Jobs], None]) -> Done:
    """Cut streams once both pods have been heard of, and let the program end then."""
    assert process.stdout is not None
    first = b""
    while not all(pod.name.encode() in first for pod in jobs.workers):
        line = process.stdout.readline()
        assert line, f"it ended before its ranks ran: {first!r}"
        first += line
    how(jobs)
    for pod in jobs.workers:
        assert pod.run("touch", GO).code == 0
    done = finish(process)
    return Done(done.code, first.decode() + done.out, done.err)


def check_lines(jobs: Jobs, done: Done) -> None:
    """Each line of each rank has come, in its order and once."""
    assert done.code == 0, done.err
    for pod in jobs.workers:
        numbers = [int(line.split()[1]) for line in done.out.splitlines() if line.startswith(pod.name)]
        assert numbers == list(range(len(numbers)))
    assert done.lines.count("end") == len(jobs.workers)


@pytest.mark.parametrize("kubectl", KUBECTLS)
@pytest.mark.parametrize("how", [restart_server, restart_kubelet])
def test_daemons_that_called_back_do_not_notice(jobs: Jobs, how: Callable[[Jobs], None], kubectl: str) -> None:
    words = ["--call-back=always", "--host=job-worker-0,job-worker-1", "sh", "-c", PROGRAM]
    with jobs.launching(*words, env={"MPILAUNCH_KUBECTL": KUBECTLS[kubectl]}) as process:
        done = cut(jobs, process, how)
    check_lines(jobs, done)
    assert done.err == ""


@pytest.mark.parametrize("kubectl", KUBECTLS)
@pytest.mark.parametrize("how", [restart_server, restart_kubelet, kill_kubectl])
def test_streams_of_the_agent_kubectl(jobs: Jobs, how: Callable[[Jobs], None], kubectl: str) -> None:
    words = ["--host=job-worker-0,job-worker-1", "sh", "-c", PROGRAM]
    with jobs.launching(*words, env={"MPILAUNCH_KUBECTL": KUBECTLS[kubectl]}) as process:
        done = cut(jobs, process, how)
    check_lines(jobs, done)


@pytest.mark.parametrize("kubectl", KUBECTLS)
@pytest.mark.parametrize("mpi", MPI)
def test_the_jobs_of_real_launchers_continue(sharing_jobs: Jobs, mpi: str, kubectl: str) -> None:
    line = [word if word != "4" else "2" for word in LINES[mpi]]
    settings = {**SETTINGS, "MPILAUNCH_KUBECTL": KUBECTLS[kubectl], "MPIEXEC_TIMEOUT": "50"}
    with sharing_jobs.launcher.running(*line, "sh", "-c", PROGRAM, env=settings) as process:
        done = cut(sharing_jobs, process, restart_server)
    check_lines(sharing_jobs, done)
