"""The manifests of examples/kubernetes: well formed, consistent, and their commands planned and run as their operator would."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.hosts import CHECKOUT, Hosts
from tests.support.kubernetes.pods import Pods
from tests.support.launching import launch

FOLDER = CHECKOUT / "examples/kubernetes"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
DOCKERFILES = sorted(FOLDER.glob("Dockerfile.*"))
IMAGES = {path.suffix[1:]: f"training-{path.suffix[1:]}" for path in DOCKERFILES}

POD_KEYS = {
    *("containers", "restartPolicy", "serviceAccountName", "shareProcessNamespace", "securityContext"),
    "terminationGracePeriodSeconds",
}
CONTAINER_KEYS = {"name", "image", "imagePullPolicy", "command", "ports", "securityContext", "readinessProbe"}
REQUIRED: dict[tuple[str, str], set[str]] = {
    ("v1", "ServiceAccount"): set(),
    ("v1", "Service"): {"spec.clusterIP", "spec.selector"},
    ("rbac.authorization.k8s.io/v1", "Role"): {"rules"},
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): {"roleRef", "subjects"},
    ("apps/v1", "StatefulSet"): {"spec.serviceName", "spec.replicas", "spec.selector.matchLabels", "spec.template"},
    ("batch/v1", "Job"): {"spec.template.spec.restartPolicy"},
    ("kubeflow.org/v1", "MPIJob"): {"spec.slotsPerWorker", "spec.mpiReplicaSpecs.Launcher", "spec.mpiReplicaSpecs.Worker"},
    ("kubeflow.org/v1alpha2", "MPIJob"): {"spec.cleanPodPolicy", "spec.mpiReplicaSpecs.Launcher"},
    ("kubeflow.org/v2beta1", "MPIJob"): {
        *("spec.slotsPerWorker", "spec.mpiImplementation", "spec.mpiReplicaSpecs.Launcher", "spec.mpiReplicaSpecs.Worker"),
    },
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): {
        *("spec.mlPolicy.numNodes", "spec.mlPolicy.mpi.numProcPerNode", "spec.template.spec.replicatedJobs"),
    },
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): {"spec.runtimeRef.name"},
    ("batch.volcano.sh/v1alpha1", "Job"): {"spec.minAvailable", "spec.plugins.mpi", "spec.tasks"},
}
"""What each kind must have."""


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def of_kind(path: Path, kind: str) -> dict[str, Any]:
    return next(document for document in documents(path) if document["kind"] == kind)


def at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data[key]
    return data


def pod_specs(data: Any) -> Iterator[dict[str, Any]]:
    """Every pod's spec in a document."""
    if isinstance(data, dict):
        if "containers" in data:
            yield data
        for value in data.values():
            yield from pod_specs(value)
    elif isinstance(data, list):
        for value in data:
            yield from pod_specs(value)


def commands(path: Path) -> list[list[str]]:
    """The commands of mpilaunch in a manifest."""
    found = [container.get("command", [""]) for spec in pod_specs(documents(path)) for container in spec["containers"]]
    return [command for command in found if command[0] == "mpilaunch"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_well_formed(path: Path) -> None:
    for document in documents(path):
        required = REQUIRED[document["apiVersion"], document["kind"]]
        assert re.fullmatch("[a-z0-9-]+", document["metadata"]["name"])
        for name in required:
            assert at(document, name) is not None
        for spec in pod_specs(document):
            assert set(spec) <= POD_KEYS
            for container in spec["containers"]:
                assert set(container) <= CONTAINER_KEYS
                assert {"name", "image"} <= set(container)
                assert container["image"] in IMAGES.values()
                assert all(isinstance(word, str) for word in container.get("command", []))
    assert f"kubectl apply{' -n training' * (path.name == 'job.yaml')} -f examples/kubernetes/{path.name}" in path.read_text()
    assert len(commands(path)) == 1


def test_job_holds_together() -> None:
    path = FOLDER / "job.yaml"
    service, workers, job = (of_kind(path, kind) for kind in ("Service", "StatefulSet", "Job"))
    role, binding, account = (of_kind(path, kind) for kind in ("Role", "RoleBinding", "ServiceAccount"))
    labels = workers["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == workers["spec"]["selector"]["matchLabels"] == labels
    assert workers["spec"]["serviceName"] == service["metadata"]["name"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]
    pods = [f"{workers['metadata']['name']}-{number}" for number in range(workers["spec"]["replicas"])]
    assert all(rule["resourceNames"] == pods for rule in role["rules"])
    assert {document["metadata"]["namespace"] for document in documents(path)} == {"training"}


def test_trainer_job_names_its_runtime() -> None:
    runtime, job = (of_kind(FOLDER / "trainer-runtime.yaml", kind) for kind in ("TrainingRuntime", "TrainJob"))
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    jobs = {one["name"]: one for one in runtime["spec"]["template"]["spec"]["replicatedJobs"]}
    assert jobs["launcher"]["dependsOn"] == [{"name": "node", "status": "Ready"}]
    # Trainer looks for a container of this name.
    assert {container["name"] for spec in pod_specs(runtime) for container in spec["containers"]} == {"node"}


# What the operators put into the launcher's pod

KUBEXEC = '#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n/opt/kube/kubectl exec ${POD_NAME} -- /bin/sh -c "$*"\n'
SSH_ARGUMENTS = "-o ConnectionAttempts=10"
BY_KUBECTL = (
    "ring-worker-0 slots=2\nring-worker-1 slots=2\n",
    {"OMPI_MCA_plm_rsh_agent": "MPI/kubexec.sh", "OMPI_MCA_orte_default_hostfile": "MPI/hostfile"},
    "kubectl",
)
OPERATORS: dict[str, tuple[str, dict[str, str], str]] = {
    "job.yaml": ("", {}, "kubectl"),
    "mpijob-v1.yaml": BY_KUBECTL,
    "mpijob-v1-mpi-operator.yaml": BY_KUBECTL,
    "mpijob-v1alpha2.yaml": BY_KUBECTL,
    "mpijob-v2beta1.yaml": (
        "ring-worker-0.ring.default.svc slots=2\nring-worker-1.ring.default.svc slots=2\n",
        {
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_default_hostfile": "MPI/hostfile",
            "OMPI_MCA_plm_rsh_args": SSH_ARGUMENTS,
            "OMPI_MCA_orte_set_default_slots": "2",
        },
        "ssh",
    ),
    "trainer-runtime.yaml": (
        "ring-node-0-0.ring slots=2\nring-node-0-1.ring slots=2\n",
        {"OMPI_MCA_orte_default_hostfile": "MPI/hostfile", "OMPI_MCA_plm_rsh_args": SSH_ARGUMENTS},
        "ssh",
    ),
    "volcano-job.yaml": ("", {"MPI_HOST": "ring-mpiworker-0.ring,ring-mpiworker-1.ring"}, "ssh"),
}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_commands_plan_four_ranks_on_two_pods(path: Path, tmp_path: Path) -> None:
    hostfile, variables, agent = OPERATORS[path.name]
    (tmp_path / "hostfile").write_text(hostfile)
    (tmp_path / "kubexec.sh").write_text(KUBEXEC)
    (tmp_path / "kubexec.sh").chmod(0o755)
    given = {name: value.replace("MPI/", f"{tmp_path}/") for name, value in variables.items()}
    (command,) = commands(path)
    done = launch("--dry-run", "--json", *command[1:], env={"KUBERNETES_SERVICE_HOST": "10.0.0.1", **given})
    assert done.code == 0, done.words
    plan = json.loads(done.out)
    assert [(node["agent"], len(node["ranks"])) for node in plan["nodes"]] == [(agent, 2)] * 2
    assert plan["apps"][0]["program"] == ["/workspace/ring_allreduce.py"]


def in_shared(command: list[str], hosts: Hosts) -> list[str]:
    """The command with the program where the testbed's machines see it."""
    program = hosts.shared / "ring_allreduce.py"
    program.write_text((CHECKOUT / "examples/ring_allreduce.py").read_text())
    program.chmod(0o755)
    return [word.replace("/workspace", str(hosts.shared)) for word in command[1:]]


@pytest.mark.testbed
def test_the_role_of_the_job_is_enough(pods: Pods) -> None:
    path = FOLDER / "job.yaml"
    rules = of_kind(path, "Role")["rules"]
    pods.server.verbs = {(verb, rule["resources"][0]) for rule in rules for verb in rule["verbs"]}
    (command,) = commands(path)
    done = pods.launch("--wdir", "/", *in_shared(command, pods))
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^\[\d\] ", done.stdout, re.M)) >= 1
    pods.server.verbs.pop()
    assert pods.launch("--wdir", "/", *in_shared(command, pods)).returncode == 1


@pytest.mark.testbed
def test_the_ssh_variant_runs_on_hosts(hosts: Hosts) -> None:
    hostfile = hosts.shared / "mpi-hostfile"
    hostfile.write_text("node01 slots=2\nnode02 slots=2\n")
    variables = dict(OPERATORS["mpijob-v2beta1.yaml"][1], OMPI_MCA_orte_default_hostfile=str(hostfile))
    (command,) = commands(FOLDER / "mpijob-v2beta1.yaml")
    done = hosts.launch("--wdir", "/", *in_shared(command, hosts), env=variables)
    assert done.returncode == 0, done.stderr


# Dockerfiles


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfiles(path: Path) -> None:
    text = path.read_text()
    assert f"docker build -t {IMAGES[path.suffix[1:]]} -f examples/kubernetes/{path.name} ." in text
    code = re.sub(r"^\s*#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    instructions = [line.split(None, 1) for line in code.splitlines() if line.strip()]
    assert instructions[0][0] == "FROM"
    assert {name for name, _ in instructions} <= {"FROM", "RUN", "COPY", "WORKDIR", "CMD"}
    for name, rest in instructions:
        if name == "COPY":
            *sources, _ = shlex.split(rest)
            assert all((CHECKOUT / source).exists() for source in sources)
        elif name == "CMD":
            assert isinstance(json.loads(rest), list)
