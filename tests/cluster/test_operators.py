"""Jobs as users write them for operators, and the pods that operators make of them: mpilaunch needs no option there.

The jobs are the examples', word for word, taken by the API server and read back, and their likes with other fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
import yaml

from mpilaunch.errors import ExitCode
from tests.cluster.cluster import Cluster, Manifest
from tests.cluster.images import LAUNCHER, OPERATOR_BASE, PROGRAMS, USER, WORKER
from tests.cluster.jobs import LATER, SLEEP
from tests.cluster.operators import jobset, leader_worker_set, mpi_operator, trainer, training_operator, volcano
from tests.cluster.operators.manifests import definition
from tests.cluster.pods import Pod
from tests.support.hosts import CHECKOUT

EXAMPLES = CHECKOUT / "examples/kubernetes"
JOB_SECONDS = 90.0
KINDS = (mpi_operator.DEFINED, *trainer.DEFINED, volcano.DEFINED, jobset.DEFINED, leader_worker_set.DEFINED)
IS_LAUNCHER = re.compile("-launcher|-mpimaster")

Change = Callable[[dict[str, Any]], None]
"""Of a job's spec."""


class Case(NamedTuple):
    """A job.

    Attributes:
        example: its file.
        objects_of: what the operator makes of the documents in the file.
        changes: of the job, the last of them.
        hosts: those of the ranks, two on each.
    """

    example: str
    objects_of: Callable[..., list[Manifest]]
    changes: Sequence[Change] = ()
    hosts: Sequence[str] = ("ring-worker-0", "ring-worker-1")


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


MPI, MPI_IN_DOMAIN = mpi_operator.objects_of, partial(mpi_operator.objects_of, cluster_domain="cluster.local")
V2, WITH_LAUNCHER = "mpijob-v2beta1.yaml", ("ring-launcher", "ring-worker-0", "ring-worker-1")
CASES = {
    "v2beta1": Case(V2, MPI),
    "v2beta1-domain": Case(V2, MPI_IN_DOMAIN),
    "v2beta1-intel": Case(V2, MPI, [with_fields(mpiImplementation="Intel")]),
    "v2beta1-mpich": Case(V2, MPI, [with_fields(mpiImplementation="MPICH")]),
    "v2beta1-launcher": Case(V2, MPI, [with_fields(runLauncherAsWorker=True)], WITH_LAUNCHER),
    "v2beta1-launcher-domain": Case(V2, MPI_IN_DOMAIN, [with_fields(runLauncherAsWorker=True)], WITH_LAUNCHER),
    "v2beta1-user": Case(V2, MPI, [as_user]),
    "v2beta1-base": Case(V2, MPI, [on_operator_base]),
    "v2beta1-restricted": Case(V2, MPI, [as_user, restricted]),
    "v1": Case("mpijob-v1-mpi-operator.yaml", MPI),
    "v1-anyone": Case("mpijob-v1-mpi-operator.yaml", MPI, [as_anyone]),
    "v1alpha2": Case("mpijob-v1alpha2.yaml", MPI),
    "training-operator": Case("mpijob-v1.yaml", training_operator.objects_of),
    "trainer": Case("trainer-runtime.yaml", trainer.objects_of, hosts=("ring-node-0-0", "ring-node-0-1")),
    "volcano": Case("volcano-job.yaml", volcano.objects_of, hosts=("ring-mpiworker-0", "ring-mpiworker-1")),
}


@pytest.fixture(scope="module")
def operated(cluster: Cluster) -> Cluster:
    """Give a cluster that has the kinds of all operators."""
    definitions = [definition(*kind) for kind in KINDS]
    cluster.apply(*definitions)
    names = (f"crd/{one['metadata']['name']}" for one in definitions)
    cluster.kubectl("wait", "--for=condition=established", "--timeout=50s", *names)
    return cluster


@contextmanager
def in_namespace(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Make a namespace, and delete it with all that is in it."""
    cluster.kubectl("create", "namespace", namespace)
    try:
        yield
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
        cluster.kubectl("delete", "pods", "--all", f"--namespace={namespace}", "--grace-period=0", "--force")


def taken(cluster: Cluster, namespace: str, document: Manifest) -> Manifest:
    """Let the API server take what a user wrote, and return what it says of it."""
    api, kind, name = document["apiVersion"], document["kind"], document["metadata"]["name"]
    document["metadata"]["namespace"] = namespace
    cluster.apply(document)
    group, _, version = api.partition("/")
    job = cluster.get(f"{kind}s.{version}.{group}".lower(), name, f"--namespace={namespace}")
    assert job["spec"] == document["spec"], "word for word"
    return job


def make(cluster: Cluster, namespace: str, objects: Sequence[Manifest]) -> list[str]:
    """Make what an operator makes, and return the names of the pods that are no launchers."""
    for manifest in objects:
        manifest["metadata"]["namespace"] = namespace
    cluster.apply(*objects)
    names = [one["metadata"]["name"] for one in objects if one["kind"] == "Pod"]
    return [name for name in names if not IS_LAUNCHER.search(name)]


@contextmanager
def made(cluster: Cluster, namespace: str, case: Case, program: str = "") -> Iterator[list[Pod]]:
    """Let the cluster take an example, make what its operator makes of it, and give the workers.

    `program` is one of the shell, which the ranks run in place of the example's.
    """
    with in_namespace(cluster, namespace):
        documents = yaml.safe_load_all((EXAMPLES / case.example).read_text())
        *others, job = (taken(cluster, namespace, document) for document in documents)
        for change in case.changes:
            change(job["spec"])
        objects = case.objects_of(*others, job)
        if program:
            pods = {one["metadata"]["name"]: one for one in objects if one["kind"] in ("Pod", "Job")}
            launcher = next(pods[name] for name in pods if IS_LAUNCHER.search(name))
            pod = launcher["spec"]["template"]["spec"] if launcher["kind"] == "Job" else launcher["spec"]
            pod["containers"][0]["command"][-1:] = ["sh", "-c", program]
        yield [cluster.pod(name, namespace) for name in make(cluster, namespace, objects)]


def launchers(cluster: Cluster, namespace: str) -> list[Manifest]:
    """Return the pods of launchers, of which each attempt of a job has one."""
    pods = cluster.get("pods", f"--namespace={namespace}")["items"]
    return [pod for pod in pods if IS_LAUNCHER.search(pod["metadata"]["name"])]


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
def test_a_job_succeeds_without_options(operated: Cluster, name: str) -> None:
    with made(operated, name, CASES[name]) as workers:
        code, said = ended(operated, name)
        hosts = CASES[name].hosts
        places = [f"rank {rank} of {2 * len(hosts)} on {hosts[rank // 2]}: " for rank in range(2 * len(hosts))]
        lines = sorted(said.splitlines())
        assert code == 0 and len(lines) == len(places), said
        assert all(place in line and "numbers is right" in line for place, line in zip(places, lines, strict=True)), said
        assert [worker.left() for worker in workers] == [{}, {}]


@pytest.mark.parametrize("name", ["v2beta1", "v2beta1-restricted", "v1", "training-operator", "trainer", "volcano"])
def test_a_job_that_fails_says_so_in_its_only_log(operated: Cluster, name: str) -> None:
    namespace = f"{name}-fails"
    program = f"echo GPUs: ${{NVIDIA_VISIBLE_DEVICES-all}}; [ $RANK != 2 ] || {{ {LATER}; exit 7; }}; exec sleep 100"
    with made(operated, namespace, CASES[name], program) as workers:
        code, said = ended(operated, namespace)
        assert code == 7 and f"rank 2 on {CASES[name].hosts[1]}" in said and "exited with code 7" in said, said
        assert said.count("GPUs: all\n") == 4, "what hides GPUs from a launcher is not for its ranks"
        assert [worker.left() for worker in workers] == [{}, {}]
        (launcher,) = launchers(operated, namespace)
        assert launcher["status"]["containerStatuses"][0]["restartCount"] == 0, "one log, that of the failure"


@pytest.mark.parametrize("name", ["v2beta1", "v2beta1-launcher", "v1", "trainer", "volcano"])
def test_a_worker_that_goes_is_named(operated: Cluster, name: str) -> None:
    namespace, hosts = f"{name}-goes", CASES[name].hosts
    with made(operated, namespace, CASES[name], "echo up; exec sleep 600") as workers:
        (launcher,) = (pod["metadata"]["name"] for pod in launchers(operated, namespace))
        until_said(operated, namespace, launcher, "up\n", 2 * len(hosts))
        operated.kubectl("delete", "pod", workers[-1].name, f"--namespace={namespace}", "--wait=false")
        code, said = ended(operated, namespace)
        assert code == ExitCode.NODE_LOST and f"error[node-lost]: {hosts[-1]}" in said, said
        assert [worker.left() for worker in workers] == [{}, {}]


def until_said(cluster: Cluster, namespace: str, pod: str, words: str, times: int = 1) -> str:
    """Wait until a pod has said words so many times, and return its log."""
    cluster.pod(pod, namespace)
    said: list[str] = [""]

    def is_said() -> bool:
        said[0] = cluster.kubectl("logs", f"--namespace={namespace}", pod)
        return said[0].count(words) >= times

    cluster.until(is_said, f"{pod} says {words!r}", JOB_SECONDS)
    return said[0]


def container(image: str, *command: str) -> dict[str, Any]:
    """Return a container of a user's manifest."""
    return {"name": "node", "image": image, "imagePullPolicy": "IfNotPresent", "command": list(command)}


def grant(cluster: Cluster, namespace: str) -> None:
    """Let the pods of a namespace run commands in each other, as docs/kubernetes.md says."""
    role = ("--verb=get,list,create", "--resource=pods,pods/exec")
    cluster.kubectl("create", "role", "mpilaunch", *role, f"--namespace={namespace}")
    binding = ("--role=mpilaunch", f"--serviceaccount={namespace}:default")
    cluster.kubectl("create", "rolebinding", "mpilaunch", *binding, f"--namespace={namespace}")


RING = f"{PROGRAMS}/ring_allreduce.py"


def test_the_leader_of_a_group_starts_ranks_in_all_its_pods(operated: Cluster) -> None:
    leader = container(LAUNCHER, "sh", "-c", f"mpilaunch -N 1 {RING}; echo ended: $?; exec sleep 365d")
    template = {
        "size": 3,
        "leaderTemplate": {"spec": {"containers": [leader]}},
        "workerTemplate": {"spec": {"containers": [container(WORKER, *SLEEP)]}},
    }
    document = {"apiVersion": leader_worker_set.DEFINED[0][0], "kind": "LeaderWorkerSet", "metadata": {"name": "group"}}
    with in_namespace(operated, "lws"):
        grant(operated, "lws")
        workload = taken(operated, "lws", {**document, "spec": {"replicas": 1, "leaderWorkerTemplate": template}})
        _, *names = make(operated, "lws", leader_worker_set.objects_of(workload))
        said = until_said(operated, "lws", "group-0", "ended: ")
        assert "ended: 0" in said, said
        for rank, host in enumerate(("group-0", "group-0-1", "group-0-2")):
            assert f"rank {rank} of 3 on {host}: " in said, said
        assert [operated.pod(name, "lws").left() for name in names] == [{}, {}]


def test_the_pods_of_a_jobset_are_found_by_their_host_names(operated: Cluster) -> None:
    command = ("mpilaunch", "--agent=kubectl", "-H", "train-node-0-[0-1].train", "-N", "2", RING)
    jobs = [("node", 2, container(WORKER, *SLEEP)), ("launcher", 1, container(LAUNCHER, *command))]
    replicated = [
        {"name": name, "template": {"spec": {"parallelism": count, "completions": count, "template": {"spec": spec}}}}
        for name, count, one in jobs
        for spec in ({"restartPolicy": "Never", "containers": [one]},)
    ]
    document = {"apiVersion": jobset.DEFINED[0][0], "kind": "JobSet", "metadata": {"name": "train"}}
    with in_namespace(operated, "jobset"):
        grant(operated, "jobset")
        job_set = taken(operated, "jobset", {**document, "spec": {"replicatedJobs": replicated}})
        names = make(operated, "jobset", jobset.objects_of(job_set))
        code, said = ended(operated, "jobset")
        assert code == 0, said
        for rank in range(4):
            assert f"rank {rank} of 4 on train-node-0-{rank // 2}: " in said, said
        assert [operated.pod(name, "jobset").left() for name in names] == [{}, {}]


def test_torchrun_in_each_pod_of_trainer_starts_one_job_in_all(operated: Cluster) -> None:
    program = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK on $(hostname), at $MASTER_ADDR:$MASTER_PORT"
    node = container(LAUNCHER, "mpilaunch", "--dialect=torchrun", "--no-python", "sh", "-c", program)
    pod = {"restartPolicy": "Never", "containers": [node]}
    replicated = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    runtime = {"mlPolicy": {"numNodes": 2, "torch": {}}, "template": {"spec": {"replicatedJobs": [replicated]}}}
    job = {"runtimeRef": {"name": "torch", "kind": "TrainingRuntime"}, "trainer": {"numProcPerNode": 2}}
    with in_namespace(operated, "torch"):
        documents = [
            taken(operated, "torch", {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec})
            for ((api,), kind), name, spec in zip(trainer.DEFINED, ("torch", "train"), (runtime, job), strict=True)
        ]
        for number, name in enumerate(make(operated, "torch", trainer.objects_of(*documents))):
            operated.until_phase(name, "torch", "Succeeded")
            said = operated.kubectl("logs", "--namespace=torch", name)
            for local in range(2):
                place = f"{local} on train-node-0-{number}, at train-node-0-0.train:{trainer.PORT}"
                assert f"{2 * number + local} of 4, {place}" in said, said
