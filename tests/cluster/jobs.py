"""A launcher in a namespace of its own, its workers, and the Role that the examples give: what most tests run their jobs on.

The workers are as mpi-operator makes them: `sleep` is their first process and reaps nothing, and no other one does it for it.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from tests.cluster.cluster import Cluster, Manifest
from tests.cluster.images import LAUNCHER, WORKER
from tests.cluster.pods import Done, Pod, finish
from tests.hosts import CHECKOUT

MANIFEST = CHECKOUT / "examples/kubernetes/job.yaml"
NAMESPACE = "jobs"
ACCOUNT = "mpilaunch"
SLEEP = ["sleep", "365d"]


def pod_manifest(name: str, image: str, command: Sequence[str], **spec: Any) -> Manifest:
    """Return the manifest of a pod with one container."""
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": list(command)}
    more = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
    pod = {**more, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": pod}


def launcher_manifest(name: str, command: Sequence[str], env: Mapping[str, str] | None = None, **spec: Any) -> Manifest:
    """Return the manifest of a pod that may do what the Role of the examples allows."""
    made = pod_manifest(name, LAUNCHER, command, serviceAccountName=ACCOUNT, automountServiceAccountToken=True, **spec)
    made["spec"]["containers"][0]["env"] = [{"name": key, "value": value} for key, value in (env or {}).items()]
    return made


class Jobs:
    """The pods.

    Attributes:
        workers: job-worker-0 and job-worker-1.
        launcher: a pod that waits for commands.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.kubectl("create", "namespace", NAMESPACE)
        for document in yaml.safe_load_all(MANIFEST.read_text()):
            if document["kind"] in ("ServiceAccount", "Role", "RoleBinding"):
                document["metadata"]["namespace"] = NAMESPACE
                for subject in document.get("subjects", []):
                    subject["namespace"] = NAMESPACE
                cluster.apply(document)
        names = ["job-worker-0", "job-worker-1"]
        cluster.apply(*(pod_manifest(name, WORKER, SLEEP) for name in names))
        cluster.apply(launcher_manifest("launcher", SLEEP, shareProcessNamespace=True))
        self.workers = [self.pod(name) for name in names]
        self.launcher = self.pod("launcher")

    def pod(self, name: str) -> Pod:
        """Wait until a pod runs, and return it."""
        return self.cluster.pod(name, NAMESPACE)

    def launch(self, *words: str, env: Mapping[str, str] | None = None, limit: float = 60.0) -> Done:
        """Run mpilaunch in the launcher to its end; at that moment nothing of it is in any pod."""
        done = finish(self.launcher.popen("mpilaunch", "--agent=kubectl", *words, env=env), limit)
        left = {pod.name: pod.left(1.0) for pod in (self.launcher, *self.workers)}
        assert not any(left.values()), f"left when mpilaunch had ended: {left}; it said: {done.err}"
        return done

    @contextlib.contextmanager
    def launching(self, *words: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """Run mpilaunch in the launcher beside the test."""
        with self.launcher.running("mpilaunch", "--agent=kubectl", *words, env=env) as process:
            yield process

    def check_empty(self) -> None:
        """Fail when anything is in a pod, and does not go within the grace time."""
        left = {pod.name: found for pod in (self.launcher, *self.workers) if (found := pod.left())}
        assert not left, f"left behind: {left}"
