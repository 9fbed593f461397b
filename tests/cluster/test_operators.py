"""MPIJobs as users write them, and the pods that Kubeflow's operator makes of them: mpilaunch needs no option there.

The jobs are the examples', word for word, taken by the API server as MPIJobs and read back, and their likes with other fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import yaml

from mpilaunch.errors import ExitCode
from tests.cluster.cluster import Cluster, Manifest
from tests.cluster.images import OPERATOR_BASE, PROGRAMS, USER
from tests.cluster.jobs import LATER
from tests.cluster.operators import definition, objects_of, workers_of
from tests.cluster.pods import Pod
from tests.support.hosts import CHECKOUT

EXAMPLES = CHECKOUT / "examples/kubernetes"
JOB_SECONDS = 90.0

Change = Callable[[dict[str, Any]], None]
"""Of a job's spec."""


class Case(NamedTuple):
    """A job: the example, and what is changed in it; `domain` is the operator's option --cluster-domain."""

    example: str
    changes: Sequence[Change] = ()
    domain: str = ""
    also_launcher: bool = False
    """Whether the launcher has ranks too."""


def with_fields(**fields: Any) -> Change:
    """Set fields of the spec."""
    return lambda spec: spec.update(fields)


def templates(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the kind and the pod of both."""
    for kind, replicas in spec["mpiReplicaSpecs"].items():
        yield kind, replicas["template"]["spec"]


def as_user(spec: dict[str, Any]) -> None:
    """Let all pods run as user 1000, as Dockerfile.worker is made for."""
    spec["sshAuthMountPath"] = f"/home/{USER}/.ssh"
    for kind, pod in templates(spec):
        container = pod["containers"][0]
        container["securityContext"] = {"runAsUser": 1000, "runAsGroup": 1000}
        if kind == "Worker":
            container["command"] = ["/usr/sbin/sshd", "-De", "-f", f"/home/{USER}/.sshd/config"]
        else:
            container["command"].insert(1, "--ssh-option=Port=2222")


def on_operator_base(spec: dict[str, Any]) -> None:
    """Let all pods have the operator's own base image, in which mpirun is mpilaunch."""
    spec["sshAuthMountPath"] = f"/home/{USER}/.ssh"
    for kind, pod in templates(spec):
        container = pod["containers"][0]
        container.update(image=OPERATOR_BASE, securityContext={"runAsUser": 1000})
        if kind == "Worker":
            container.update(command=["/usr/sbin/sshd"], args=["-De", "-f", f"/home/{USER}/.sshd_config"])
        else:
            container.update(command=["mpirun"], args=["--tag-output", "-n", "4", f"{PROGRAMS}/ring_allreduce.py"])


def as_anyone(spec: dict[str, Any]) -> None:
    """Let all pods run as a user whom no file of the image names, as OpenShift does."""
    for _, pod in templates(spec):
        pod["containers"][0]["securityContext"] = {"runAsUser": 1_000_660_000, "runAsGroup": 0}


def restricted(spec: dict[str, Any]) -> None:
    """Take from all pods what the Pod Security Standard `restricted` takes, and a root file system to write to."""
    for _, pod in templates(spec):
        pod["securityContext"] = {"runAsNonRoot": True, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
        less = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
        pod["containers"][0]["securityContext"].update(less)


CASES = {
    "v2beta1": Case("mpijob-v2beta1.yaml"),
    "v2beta1-domain": Case("mpijob-v2beta1.yaml", domain="cluster.local"),
    "v2beta1-intel": Case("mpijob-v2beta1.yaml", [with_fields(mpiImplementation="Intel")]),
    "v2beta1-mpich": Case("mpijob-v2beta1.yaml", [with_fields(mpiImplementation="MPICH")]),
    "v2beta1-launcher": Case("mpijob-v2beta1.yaml", [with_fields(runLauncherAsWorker=True)], also_launcher=True),
    "v2beta1-launcher-domain": Case(
        "mpijob-v2beta1.yaml", [with_fields(runLauncherAsWorker=True)], domain="cluster.local", also_launcher=True
    ),
    "v2beta1-user": Case("mpijob-v2beta1.yaml", [as_user]),
    "v2beta1-base": Case("mpijob-v2beta1.yaml", [on_operator_base]),
    "v2beta1-restricted": Case("mpijob-v2beta1.yaml", [as_user, restricted]),
    "v1": Case("mpijob-v1-mpi-operator.yaml"),
    "v1-anyone": Case("mpijob-v1-mpi-operator.yaml", [as_anyone]),
    "v1alpha2": Case("mpijob-v1alpha2.yaml"),
}


@pytest.fixture(scope="module")
def mpijobs(cluster: Cluster) -> Cluster:
    """Give a cluster that has MPIJobs."""
    cluster.apply(definition())
    cluster.kubectl("wait", "--for=condition=established", "--timeout=50s", f"crd/{definition()['metadata']['name']}")
    return cluster


@contextmanager
def made(cluster: Cluster, namespace: str, case: Case, changes: Sequence[Change] = ()) -> Iterator[list[Pod]]:
    """Let the cluster take a job, make what the operator makes of it, and give the workers."""
    text = (EXAMPLES / case.example).read_text()
    api, kind = (yaml.safe_load(text)[key] for key in ("apiVersion", "kind"))
    group, _, version = api.partition("/")
    cluster.kubectl("create", "namespace", namespace)
    cluster.kubectl("apply", f"--namespace={namespace}", f"--filename={EXAMPLES / case.example}")
    job = cluster.get(f"{kind}s.{version}.{group}".lower(), "ring", f"--namespace={namespace}")
    assert job["spec"] == yaml.safe_load(text)["spec"], "word for word"
    for change in (*case.changes, *changes):
        change(job["spec"])
    objects = objects_of(job, case.domain)
    for manifest in objects:
        manifest["metadata"]["namespace"] = namespace
    try:
        cluster.apply(*objects)
        yield [cluster.pod(name, namespace) for name in workers_of(job)]
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
        cluster.kubectl("delete", "pods", "--all", f"--namespace={namespace}", "--grace-period=0", "--force")


def launchers(cluster: Cluster, namespace: str) -> list[Manifest]:
    """Return the pods of launchers, of which each attempt of a job has one."""
    pods = cluster.get("pods", f"--namespace={namespace}")["items"]
    return [pod for pod in pods if "-launcher" in pod["metadata"]["name"]]


def ended(cluster: Cluster, namespace: str) -> tuple[int, str]:
    """Wait for the launcher's end, and return its exit code and its log."""
    found: list[Manifest] = []

    def has_ended() -> bool:
        found[:] = [pod for pod in launchers(cluster, namespace) if pod["status"]["phase"] in ("Succeeded", "Failed")]
        return bool(found)

    cluster.until(has_ended, f"the launcher of {namespace} has ended", JOB_SECONDS)
    (status,) = found[0]["status"]["containerStatuses"]
    said = cluster.kubectl("logs", f"--namespace={namespace}", found[0]["metadata"]["name"])
    return status["state"]["terminated"]["exitCode"], said


@pytest.mark.parametrize("name", CASES)
def test_a_job_succeeds_without_options(mpijobs: Cluster, name: str) -> None:
    with made(mpijobs, name, CASES[name]) as workers:
        code, said = ended(mpijobs, name)
        hosts = [*["ring-launcher"] * CASES[name].also_launcher, "ring-worker-0", "ring-worker-1"]
        places = [f"rank {rank} of {2 * len(hosts)} on {hosts[rank // 2]}: " for rank in range(2 * len(hosts))]
        lines = sorted(said.splitlines())
        assert code == 0 and len(lines) == len(places), said
        assert all(place in line and "numbers is right" in line for place, line in zip(places, lines, strict=True)), said
        assert [worker.left() for worker in workers] == [{}, {}]


def running(program: str) -> Change:
    """Let the ranks run a shell's program."""

    def change(spec: dict[str, Any]) -> None:
        container = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
        container["command"][-1:] = ["sh", "-c", program]

    return change


@pytest.mark.parametrize("name", ["v2beta1", "v2beta1-restricted", "v1"])
def test_a_job_that_fails_says_so_in_its_only_log(mpijobs: Cluster, name: str) -> None:
    namespace, program = f"{name}-fails", f"[ $RANK != 2 ] || {{ {LATER}; exit 7; }}; exec sleep 100"
    with made(mpijobs, namespace, CASES[name], [running(program)]) as workers:
        code, said = ended(mpijobs, namespace)
        assert code == 7 and "rank 2 on ring-worker-1" in said and "exited with code 7" in said, said
        assert [worker.left() for worker in workers] == [{}, {}]
        assert len(launchers(mpijobs, namespace)) == 1, "one log, that of the failure"


@pytest.mark.parametrize("name", ["v2beta1", "v2beta1-launcher", "v1"])
def test_a_worker_that_goes_is_named(mpijobs: Cluster, name: str) -> None:
    namespace = f"{name}-goes"
    ranks = 6 if CASES[name].also_launcher else 4
    with made(mpijobs, namespace, CASES[name], [running("echo up; exec sleep 600")]) as workers:
        (launcher,) = (pod["metadata"]["name"] for pod in launchers(mpijobs, namespace))
        mpijobs.pod(launcher, namespace)

        def are_up() -> bool:
            return mpijobs.kubectl("logs", f"--namespace={namespace}", launcher).count("up\n") == ranks

        mpijobs.until(are_up, "the ranks run")
        mpijobs.kubectl("delete", "pod", "ring-worker-1", f"--namespace={namespace}", "--wait=false")
        code, said = ended(mpijobs, namespace)
        assert code == ExitCode.NODE_LOST and "error[node-lost]: ring-worker-1" in said, said
        assert [worker.left() for worker in workers] == [{}, {}]
