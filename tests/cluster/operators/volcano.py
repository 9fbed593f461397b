"""What Volcano 1.15 makes of a Job with its plugins mpi, ssh and svc, transcribed from it. Pure.

Source: volcano-sh/volcano, pkg/controllers/job/job_controller_util.go and pkg/controllers/job/plugins/.
"""

from __future__ import annotations

import copy
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa

from tests.cluster.cluster import Manifest
from tests.cluster.operators.manifests import (
    add_labels,
    add_variables,
    config_map,
    items,
    key_pair,
    mount,
    pod_of,
    secret,
    service,
)

DEFINED = (("batch.volcano.sh/v1alpha1",), "Job")
KEY_FILES = ("id_rsa", "id_rsa.pub", "authorized_keys", "config")


def objects_of(job: Manifest) -> list[Manifest]:
    """Return what Volcano makes of a job that has its namespace."""
    name, tasks = job["metadata"]["name"], job["spec"]["tasks"]
    labels = {"volcano.sh/job-name": name, "volcano.sh/job-namespace": job["metadata"]["namespace"]}
    hosts = {task["name"]: [f"{name}-{task['name']}-{number}" for number in range(task["replicas"])] for task in tasks}
    arguments = dict(word.removeprefix("--").split("=") for word in job["spec"]["plugins"]["mpi"])
    names = _names(name, hosts)
    pods = []
    for task in tasks:
        for host in hosts[task["name"]]:
            template = copy.deepcopy(task["template"])
            add_labels(template, {**labels, "volcano.sh/task-spec": task["name"]})
            _equip(name, template["spec"], names)
            template["spec"].update(hostname=host, subdomain=name)
            if task["name"] == arguments["master"]:
                workers = ",".join(f"{worker}.{name}" for worker in hosts[arguments["worker"]])
                add_variables(template["spec"]["containers"][0], {"MPI_HOST": workers})
            pods.append(pod_of(host, template))
    ingress = [{"from": [{"podSelector": {"matchLabels": labels}}]}]
    policy = {"podSelector": {"matchLabels": labels}, "ingress": ingress, "policyTypes": ["Ingress"]}
    return [
        _keys(name, hosts, arguments["port"]),
        config_map(f"{name}-svc", names),
        service(name, labels, not_ready_too=False),
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": policy},
        *pods,
    ]


def _names(name: str, hosts: dict[str, list[str]]) -> dict[str, str]:
    """Return the ConfigMap of svc: files, and what becomes variables."""
    data = {}
    for task, own in hosts.items():
        word, full = task.replace("-", "_"), [f"{host}.{name}" for host in own]
        data[f"{word}.host"] = "\n".join(full)
        data[f"VC_{word.upper()}_HOSTS"] = ",".join(full)
        data[f"VC_{word.upper()}_NUM"] = str(len(full))
    return data


def _keys(name: str, hosts: dict[str, list[str]], port: str) -> Manifest:
    private, public = key_pair(rsa.generate_private_key(65537, 2048))
    config = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
    config += "".join(f"Host {host}\n  HostName {host}.{name}\n  Port {port}\n" for own in hosts.values() for host in own)
    return secret(f"{name}-ssh", dict(zip(KEY_FILES, (private, public, public, config.encode()), strict=True)))


def _equip(name: str, spec: dict[str, Any], names: dict[str, str]) -> None:
    """Give a pod the keys and the names."""
    keys = {"secretName": f"{name}-ssh", "defaultMode": 0o600, "items": items({key: (f".ssh/{key}",) for key in KEY_FILES})}
    mount(spec, f"{name}-ssh", {"secret": keys}, "/root/.ssh", subPath=".ssh")
    mount(spec, f"{name}-svc", {"configMap": {"name": f"{name}-svc"}}, "/etc/volcano")
    spec["containers"][0].setdefault("env", []).extend(
        {"name": key, "valueFrom": {"configMapKeyRef": {"name": f"{name}-svc", "key": key}}} for key in names if "." not in key
    )
