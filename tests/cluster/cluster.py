"""A genuine cluster of one node on this machine: etcd, API server, controller manager, scheduler, kubelet, containerd, runc.

Nothing stands in for anything, but for a name server in CoreDNS's place; there is no kube-proxy and no registry. What tests
want of it goes through kubectl, as its users' wishes do; only commands in a pod go past the API server, straight to containerd,
so that a test can kill the one without the other.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.cluster import images, settings
from tests.cluster.build import DEBIAN, missing
from tests.cluster.machine import NODE, PROGRAMS, Machine
from tests.cluster.pods import Pod
from tests.support import cgroups
from tests.support.requirements import require

PREFIX = "mpilaunch-cluster-"
STATES = Path("/var/tmp")
"""Not /tmp, which may be memory."""

START_SECONDS = 90.0
POD_SECONDS = 60.0

Manifest = dict[str, Any]


class Cluster:
    """The cluster, from `with` to its end.

    Args:
        second_kubectl: a kubectl that the launcher's image is to have beside Debian's.
    """

    def __init__(self, second_kubectl: Path | None = None) -> None:
        self._second_kubectl = second_kubectl
        self._group = f"{PREFIX}{os.getpid()}"

    def __enter__(self) -> Cluster:
        if missing():
            raise RuntimeError(f"cluster: not built, make test-cluster does it; missing: {', '.join(map(str, missing()))}")
        require("cluster", {**PROGRAMS, **{compiler: f"lib{name}-dev" for name, compiler in images.MPI.items()}})
        remove_stale()
        self.state = STATES / self._group
        self.state.mkdir()
        self._machine = Machine(self.state)
        try:
            cgroups.make(self._group)
            self._machine.__enter__()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._machine.__exit__()
        cgroups.remove(self._group)
        shutil.rmtree(self.state)

    def _start(self) -> None:
        settings.write_all(self.state, self._group)
        services = settings.services(self.state)
        for name in ("etcd", "containerd", "kube-apiserver"):
            self._machine.start(name, services[name])
        images.make_layers(self.state, self._second_kubectl)
        images.write_images(self.state)
        self._until_served()
        for name in ("names", "kube-controller-manager", "kube-scheduler", "kubelet"):
            self._machine.start(name, services[name])
        self.until(lambda: (self.state / "containerd.log").read_text().count("serving..."), "containerd", START_SECONDS)
        images.import_images(self.state, self.inside)
        self.until(self._is_ready, "the node is ready", START_SECONDS)

    # The API server

    def kubectl(self, *words: str, manifest: Manifest | None = None) -> str:
        """Run kubectl as the administrator, and return its output; a manifest comes by stdin."""
        text = None if manifest is None else json.dumps(manifest).encode()
        done = self._machine.run([*self._kubectl, *words], text)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def apply(self, *manifests: Manifest) -> None:
        """Make what manifests say."""
        self.kubectl("apply", "--filename=-", manifest={"apiVersion": "v1", "kind": "List", "items": list(manifests)})

    def get(self, *words: str) -> Manifest:
        """Return what kubectl gets, read."""
        got: Manifest = json.loads(self.kubectl("get", "--output=json", *words))
        return got

    def restart(self, service: str) -> None:
        """SIGKILL to the API server or the kubelet: every stream through it is cut. Start it, and wait until it serves."""
        self._machine.kill(service)
        self._machine.start(service, settings.services(self.state)[service])
        self._until_served("" if service == "kube-apiserver" else f"/api/v1/nodes/{NODE}/proxy")

    # Pods

    def pod(self, name: str, namespace: str) -> Pod:
        """Wait until a pod runs, and return it."""
        found: list[Manifest] = []

        def runs() -> bool:
            found[:] = self.get("pods", f"--namespace={namespace}", f"--field-selector=metadata.name={name}")["items"]
            status = found[0]["status"].get("containerStatuses", []) if found else []
            return bool(status) and all("running" in container["state"] for container in status)

        self.until(runs, f"pod {name} runs", POD_SECONDS)
        containers = [one["containerID"].removeprefix("containerd://") for one in found[0]["status"]["containerStatuses"]]
        return Pod(name, containers, self._machine)

    def until_phase(self, name: str, namespace: str, phase: str) -> Manifest:
        """Wait until a pod is in a phase, and return its status."""
        found: list[Manifest] = []

        def is_there() -> bool:
            found[:] = [self.get("pod", name, f"--namespace={namespace}")["status"]]
            return bool(found[0]["phase"] == phase)

        self.until(is_there, f"pod {name} is in phase {phase}", POD_SECONDS)
        return found[0]

    # The machine

    @property
    def _kubectl(self) -> list[str]:
        return [f"{DEBIAN}/usr/bin/kubectl", f"--kubeconfig={self.state}/admin.kubeconfig", f"--cache-dir={self.state}/cache"]

    def inside(self, argv: Sequence[str | Path]) -> str:
        """Run a command on the node that succeeds, and return its output."""
        done = self._machine.run(argv)
        assert done.returncode == 0, f"{argv}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def logs(self) -> str:
        """Return the last words of every service."""
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}" for log in sorted(self.state.glob("*.log")))

    def _until_served(self, place: str = "") -> None:
        ready = [*self._kubectl, "get", f"--raw={place}/healthz"]
        self.until(lambda: self._machine.run(ready).stdout == "ok", f"{place}/healthz says ok", START_SECONDS)

    def _is_ready(self) -> bool:
        """Return whether pods can be made: the node, and what the controller manager makes of an empty cluster."""
        nodes = self.get("nodes")["items"]
        conditions = [condition for node in nodes for condition in node["status"].get("conditions", [])]
        ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
        return ready and bool(self.get("serviceaccounts", "--namespace=default")["items"])

    def until(self, condition: Callable[[], object], what: str, limit: float = POD_SECONDS) -> None:
        """Wait until a condition holds; fail when a service ends, or at the deadline."""
        deadline = time.monotonic() + limit
        while not condition():
            self._machine.check()
            assert time.monotonic() < deadline, f"cluster: not within {limit:g} s: {what}\n{self.logs()}"
            time.sleep(0.1)


def remove_stale() -> None:
    """Remove what is left of test runs that were killed: their processes went with them, directories did not."""
    for place in (STATES, *cgroups.hierarchies()):
        for found in place.glob(f"{PREFIX}*"):
            if not Path("/proc", found.name.removeprefix(PREFIX)).exists():
                if place == STATES:
                    shutil.rmtree(found)
                else:
                    cgroups.remove(found.name)
