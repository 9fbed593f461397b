"""What Kubeflow Trainer 2.2 makes of a TrainJob and its TrainingRuntime: a JobSet, changed by a plugin.

Pure: manifests in and out.

Source: kubeflow/trainer, branch release-2.2, pkg/runtime/framework/plugins/{mpi,torch,jobset}.
"""

from __future__ import annotations

import copy
from typing import Any

from tests.cluster.cluster import Manifest
from tests.cluster.operators import jobset
from tests.cluster.operators.manifests import SSH_FILES, add_variables, config_map, mount, ssh_secret

API = ("trainer.kubeflow.org/v1alpha1",)
DEFINED = (API, "TrainingRuntime"), (API, "TrainJob")
HOSTFILES = "/etc/mpi"
PORT = 29400


def objects_of(runtime: Manifest, job: Manifest) -> list[Manifest]:
    """Return what the operator and JobSet make of a job; it may say `trainer.numNodes` and `trainer.numProcPerNode`."""
    name, policy, wanted = job["metadata"]["name"], runtime["spec"]["mlPolicy"], job["spec"].get("trainer", {})
    count = wanted.get("numNodes", policy.get("numNodes", 1))
    spec = copy.deepcopy(runtime["spec"]["template"]["spec"])
    jobs = {one["name"]: one["template"]["spec"] for one in spec["replicatedJobs"]}
    jobs["node"].update(parallelism=count, completions=count)
    pods = {kind: one["template"]["spec"] for kind, one in jobs.items()}
    objects = []
    if "mpi" in policy:
        slots = wanted.get("numProcPerNode", policy["mpi"].get("numProcPerNode", 1))
        also_launcher = policy["mpi"].get("runLauncherAsNode", False)
        hosts = [f"{name}-launcher-0-0"] * also_launcher + [f"{name}-node-0-{number}" for number in range(count)]
        objects = _for_mpi(name, pods, policy["mpi"], [f"{host}.{name}" for host in hosts], slots)
    else:
        _for_torch(name, pods["node"]["containers"][0], count, wanted.get("numProcPerNode", "auto"))
    return [*objects, *jobset.objects_of({"metadata": job["metadata"], "spec": spec})]


def _for_mpi(
    name: str, pods: dict[str, dict[str, Any]], policy: dict[str, Any], hosts: list[str], slots: int
) -> list[Manifest]:
    for pod in pods.values():
        volume = {"secret": {"secretName": f"{name}-mpi-ssh-auth", "items": SSH_FILES}}
        mount(pod, "mpi-ssh-auth", volume, policy.get("sshAuthMountPath", "/root/.ssh"))
    files = {"name": f"{name}-mpi-hostfile", "items": [{"key": "hostfile", "path": "hostfile", "mode": 0o444}]}
    mount(pods["launcher"], "mpi-hostfile", {"configMap": files}, HOSTFILES)
    add_variables(
        pods["launcher"]["containers"][0],
        {
            "OMPI_MCA_orte_default_hostfile": f"{HOSTFILES}/hostfile",
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_set_default_slots": str(slots),
            "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        },
    )
    hostfile = "".join(f"{host} slots={slots}\n" for host in hosts)
    return [ssh_secret(f"{name}-mpi-ssh-auth"), config_map(f"{name}-mpi-hostfile", {"hostfile": hostfile})]


def _for_torch(name: str, container: dict[str, Any], count: int, processes: int | str) -> None:
    add_variables(
        container,
        {
            "PET_NNODES": str(count),
            "PET_NPROC_PER_NODE": str(processes),
            "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
            "PET_MASTER_PORT": str(PORT),
        },
    )
    place = {"fieldRef": {"fieldPath": f"metadata.annotations['{jobset.INDEX}']"}}
    container["env"].append({"name": "PET_NODE_RANK", "valueFrom": place})
