"""A launcher in a namespace of its own, its workers, and the Role that the examples give: what most tests run their jobs on.

Workers are as mpi-operator makes them: `sleep` is their first process and reaps nothing. Where they share a process namespace,
as in the manifest of the examples, the pod's own first process reaps.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from tests.cluster.cluster import Cluster, Manifest
from tests.cluster.images import LAUNCHER, WORKER
from tests.cluster.machine import NODE
from tests.cluster.pods import GRACE_SECONDS, Done, Pod, finish
from tests.support.hosts import CHECKOUT

MANIFEST = CHECKOUT / "examples/kubernetes/job.yaml"
ACCOUNT = "mpilaunch"
AT_END_SECONDS = 1.0
"""Within which the last process of a job has gone when mpilaunch itself has."""
SLEEP = ["sleep", "365d"]
LATER = "sleep 2"
"""Shell command of a rank that is about to fail: the failure ends the other ranks, which print first."""


def pod_manifest(name: str, image: str, command: Sequence[str], **spec: Any) -> Manifest:
    """Return the manifest of a pod with one container."""
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": list(command)}
    more = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
    pod = {**more, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod}


def launcher_manifest(name: str, command: Sequence[str], env: Mapping[str, str] | None = None, **spec: Any) -> Manifest:
    """Return the manifest of a pod that may do what the Role of the examples allows."""
    made = pod_manifest(name, LAUNCHER, command, serviceAccountName=ACCOUNT, automountServiceAccountToken=True, **spec)
    made["spec"]["containers"][0]["env"] = [{"name": key, "value": value} for key, value in (env or {}).items()]
    return made


class Jobs:
    """The pods.

    Args:
        share: whether the containers of each worker share a process namespace with the pod's own first process.

    Attributes:
        namespace: of all of them.
        workers: job-worker-0 and job-worker-1.
        launcher: a pod that waits for commands.
    """

    def __init__(self, cluster: Cluster, namespace: str, *, share: bool = False) -> None:
        self.cluster = cluster
        self.namespace = namespace
        cluster.kubectl("create", "namespace", namespace)
        for document in yaml.safe_load_all(MANIFEST.read_text()):
            if document["kind"] in ("ServiceAccount", "Role", "RoleBinding"):
                for subject in document.get("subjects", []):
                    subject["namespace"] = namespace
                self.apply(document)
        names = ["job-worker-0", "job-worker-1"]
        self._share = share
        self._told: set[int] = set()
        self.apply(*map(self._worker_manifest, names), launcher_manifest("launcher", SLEEP, shareProcessNamespace=True))
        self.workers = [self.pod(name) for name in names]
        self.launcher = self.pod("launcher")

    def make_again(self, number: int) -> None:
        """Make a worker again that has been deleted."""
        name = self.workers[number].name
        self.apply(self._worker_manifest(name))
        self.workers[number] = self.pod(name)

    def pod(self, name: str) -> Pod:
        """Wait until a pod runs, and return it."""
        return self.cluster.pod(name, self.namespace)

    def apply(self, *manifests: Manifest) -> None:
        """Make what manifests say in our namespace."""
        for manifest in manifests:
            manifest["metadata"]["namespace"] = self.namespace
        self.cluster.apply(*manifests)

    def kubectl(self, *words: str) -> str:
        """Run kubectl as the administrator, in our namespace."""
        return self.cluster.kubectl(f"--namespace={self.namespace}", *words)

    def delete(self, pod: str) -> None:
        """Delete a pod at once, as when its node is lost."""
        self.kubectl("delete", "pod", pod, "--grace-period=0", "--force")

    def delete_with_grace(self, pod: str) -> None:
        """Delete a pod as users do: its first process is told to end, and killed a second later."""
        self.kubectl("delete", "pod", pod)

    def drain(self, pod: str) -> None:
        """Evict a pod, as when its node is drained; pods may be made there again afterwards."""
        self.kubectl("label", "pod", pod, "drained=yes")
        try:
            self.kubectl("drain", NODE, "--pod-selector=drained=yes", "--force")
        finally:
            self.kubectl("uncordon", NODE)

    def _worker_manifest(self, name: str) -> Manifest:
        return pod_manifest(name, WORKER, SLEEP, shareProcessNamespace=self._share)

    def launch(self, *words: str, env: Mapping[str, str] | None = None, limit: float = 60.0) -> Done:
        """Run mpilaunch in the launcher to its end; at that moment nothing of it is in any pod."""
        done = finish(self.launcher.popen("mpilaunch", "--agent=kubectl", *words, env=env), limit)
        left = self.left(AT_END_SECONDS)
        assert not left, f"left when mpilaunch had ended: {left}; it said: {done.err}"
        return done

    @contextlib.contextmanager
    def launching(self, *words: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """Run mpilaunch in the launcher beside the test."""
        with self.launcher.running("mpilaunch", "--agent=kubectl", *words, env=env) as process:
            yield process

    def left(self, limit: float) -> dict[str, dict[int, str]]:
        """Return what has not gone at the end of a time, by pod; what has been told once is not told again."""
        deadline = time.monotonic() + limit
        while True:
            now = {pod.name: pod.processes() for pod in (self.launcher, *self.workers)}
            left = {name: {pid: words for pid, words in found.items() if pid not in self._told} for name, found in now.items()}
            if not any(left.values()) or time.monotonic() > deadline:
                self._told.update(pid for found in left.values() for pid in found)
                return {name: found for name, found in left.items() if found}
            time.sleep(0.05)

    def check_empty(self) -> None:
        """Fail when anything is in a pod, and does not go within the grace time."""
        left = self.left(GRACE_SECONDS)
        assert not left, f"left behind: {left}"
