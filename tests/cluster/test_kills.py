"""Whatever dies in the middle of a job: nothing is left in any pod within the grace time, and who it was is told."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from mpilaunch.errors import ExitCode
from tests.cluster.jobs import Jobs, launcher_manifest
from tests.cluster.pods import Done, Pod, finish
from tests.support.processes import parent

WORDS = ("--reconnect-timeout=2", "--host=job-worker-0,job-worker-1", "sh", "-c", "echo up; setsid sleep 600 & sleep 600")
"""By itself a pod waits for a minute whether its head comes back."""
CONNECTIONS = {"streams": (), "call-back": ("--call-back=always",)}


def wait_up(process: subprocess.Popen[bytes]) -> None:
    """Wait until the ranks of both pods have started."""
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [b"up\n"] * 2


def head(jobs: Jobs) -> int:
    """Return the head."""
    (found,) = jobs.launcher.find("/usr/local/bin/mpilaunch ")
    return found


def guard_and_daemon(pod: Pod) -> tuple[int, int]:
    """Return the rank's parent in a pod, and the one's."""
    daemon = parent(pod.find("sh -c echo up")[0])
    return parent(daemon), daemon


def check_lost(jobs: Jobs, done: Done) -> None:
    """The second worker is named as lost, and nothing is left in any pod."""
    assert done.code == ExitCode.NODE_LOST, done.err
    assert "job-worker-1" in done.err
    jobs.check_empty()


@pytest.mark.parametrize("connection", CONNECTIONS)
def test_the_head(jobs: Jobs, connection: str) -> None:
    with jobs.launching(*CONNECTIONS[connection], *WORDS) as process:
        wait_up(process)
        os.kill(head(jobs), signal.SIGKILL)
        done = finish(process)
    assert done.code == 128 + signal.SIGKILL
    jobs.check_empty()


@pytest.mark.parametrize("connection", CONNECTIONS)
def test_the_daemon(jobs: Jobs, connection: str) -> None:
    with jobs.launching(*CONNECTIONS[connection], *WORDS) as process:
        wait_up(process)
        _, daemon = guard_and_daemon(jobs.workers[1])
        os.kill(daemon, signal.SIGKILL)
        done = finish(process)
    check_lost(jobs, done)


@pytest.mark.parametrize("connection", CONNECTIONS)
def test_the_guard(sharing_jobs: Jobs, connection: str) -> None:
    # It alone is nobody's child but the agent's: its daemon becomes the child of the pod's first process, which has to reap.
    with sharing_jobs.launching(*CONNECTIONS[connection], *WORDS) as process:
        wait_up(process)
        guard, _ = guard_and_daemon(sharing_jobs.workers[1])
        os.kill(guard, signal.SIGKILL)
        done = finish(process)
    check_lost(sharing_jobs, done)


GOES = {"lost": Jobs.delete, "deleted": Jobs.delete_with_grace, "drained": Jobs.drain}
"""How a pod goes."""


@pytest.mark.parametrize("goes", GOES)
@pytest.mark.parametrize("connection", CONNECTIONS)
def test_a_pod(jobs: Jobs, connection: str, goes: str) -> None:
    with jobs.launching(*CONNECTIONS[connection], *WORDS) as process:
        wait_up(process)
        deleted = jobs.workers[1]
        GOES[goes](jobs, "job-worker-1")
        try:
            done = finish(process)
            assert deleted.left() == {}
        finally:
            jobs.make_again(1)
    check_lost(jobs, done)


@pytest.mark.parametrize("connection", CONNECTIONS)
def test_a_pod_whose_likeness_takes_its_name(jobs: Jobs, connection: str) -> None:
    words = [*CONNECTIONS[connection], *(word for word in WORDS if "reconnect" not in word)]
    with jobs.launching(*words) as process:
        wait_up(process)
        jobs.delete("job-worker-1")
        jobs.make_again(1)
        done = finish(process)
    check_lost(jobs, done)
    assert "not reached again within" not in done.err, "its daemon is looked for there, and is not"


@pytest.mark.parametrize("goes", GOES)
@pytest.mark.parametrize("connection", CONNECTIONS)
def test_the_pod_of_the_launcher(jobs: Jobs, connection: str, goes: str) -> None:
    jobs.apply(launcher_manifest("job-launcher", ["mpilaunch", "--agent=kubectl", *CONNECTIONS[connection], *WORDS]))
    jobs.pod("job-launcher")
    try:
        jobs.cluster.until(lambda: jobs.kubectl("logs", "job-launcher") == "up\nup\n", "the ranks run")
    finally:
        GOES[goes](jobs, "job-launcher")
    jobs.check_empty()
