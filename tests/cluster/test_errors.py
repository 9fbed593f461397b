"""What cannot work is told at once, with what to do; what time cures is waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mpilaunch.errors import ExitCode
from tests.cluster.images import BARE, WORKER
from tests.cluster.jobs import ACCOUNT, SLEEP, Jobs, pod_manifest
from tests.cluster.kubectls import KUBECTLS
from tests.cluster.pods import finish

AT_ONCE = 10.0
"""Seconds within which an error must be told that no waiting cures; mpilaunch waits 300 s in a pod."""


@contextmanager
def allowed(jobs: Jobs, *pods: str) -> Iterator[None]:
    """Let the launcher into more pods for a while, by a Role as the examples have it."""
    names = [f"--resource-name={pod}" for pod in pods]
    account = f"--serviceaccount={jobs.namespace}:{ACCOUNT}"
    for name, verb, resource in (("more-get", "get", "pods"), ("more-exec", "create", "pods/exec")):
        jobs.kubectl("create", "role", name, f"--verb={verb}", f"--resource={resource}", *names)
        jobs.kubectl("create", "rolebinding", name, f"--role={name}", account)
    try:
        yield
    finally:
        for name in ("more-get", "more-exec"):
            jobs.kubectl("delete", "role,rolebinding", name)


@contextmanager
def pod(jobs: Jobs, name: str, image: str, command: list[str]) -> Iterator[None]:
    """Let there be one more pod."""
    jobs.apply(pod_manifest(name, image, command))
    try:
        yield
    finally:
        jobs.delete(name)


def fails_at_once(jobs: Jobs, *words: str, kubectl: str = "1.20") -> str:
    """Launch what cannot start, and return what is said."""
    began = time.monotonic()
    done = jobs.launch(*words, "true", env={"MPILAUNCH_KUBECTL": KUBECTLS[kubectl]})
    assert (done.code, done.out) == (ExitCode.START_FAILED, ""), done.err
    assert time.monotonic() - began < AT_ONCE, done.err
    return done.err


@pytest.mark.parametrize("kubectl", KUBECTLS)
def test_a_pod_outside_the_role(jobs: Jobs, kubectl: str) -> None:
    said = fails_at_once(jobs, "--host=job-worker-0,launcher", kubectl=kubectl)
    assert "error[start-cluster-forbidden]: 1 of 2 nodes: launcher: " in said
    assert 'User "system:serviceaccount:jobs:mpilaunch" cannot get resource "pods"' in said
    assert "kubectl create role mpilaunch --verb=get,create --resource=pods,pods/exec" in said


def test_the_role_that_the_error_tells_is_enough(jobs: Jobs) -> None:
    with allowed(jobs, "launcher"):
        done = jobs.launch("--host=job-worker-0,launcher", "hostname")
    assert (done.code, done.lines) == (0, ["job-worker-0", "launcher"]), done.err


def test_a_container_that_is_not_there(jobs: Jobs) -> None:
    said = fails_at_once(jobs, "--container=side", "--host=job-worker-0")
    assert "error[start-container-unknown]: job-worker-0: " in said
    assert "--container" in said


def test_a_completed_pod(jobs: Jobs) -> None:
    with allowed(jobs, "completed"), pod(jobs, "completed", WORKER, ["true"]):
        jobs.cluster.until_phase("completed", jobs.namespace, "Succeeded")
        said = fails_at_once(jobs, "--host=completed")
    assert "error[start-pod-completed]: completed: " in said


def test_a_pod_without_python(jobs: Jobs) -> None:
    with allowed(jobs, "bare"), pod(jobs, "bare", BARE, ["/bin/sleep", "365d"]):
        jobs.pod("bare")
        said = fails_at_once(jobs, "--host=bare")
    assert "error[start-python-missing]: bare: " in said
    assert "install python3" in said


@pytest.mark.parametrize("kubectl", KUBECTLS)
def test_a_pod_that_comes_later_is_waited_for(jobs: Jobs, kubectl: str) -> None:
    env = {"MPILAUNCH_KUBECTL": KUBECTLS[kubectl]}
    with allowed(jobs, "late"), jobs.launching("--host=job-worker-0,late", "hostname", env=env) as process:
        time.sleep(5)
        assert process.poll() is None
        with pod(jobs, "late", WORKER, SLEEP):
            done = finish(process)
    assert (done.code, done.lines) == (0, ["job-worker-0", "late"]), done.err


def test_a_pod_that_never_comes_is_named(jobs: Jobs) -> None:
    with allowed(jobs, "never"):
        done = jobs.launch("--start-timeout=3", "--host=job-worker-0,never", "hostname")
    assert (done.code, done.out) == (ExitCode.START_FAILED, "")
    assert "error[start-pod-unknown]: 1 of 2 nodes: never: no such pod after 3" in done.err
