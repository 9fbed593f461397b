"""What LeaderWorkerSet 0.9 makes of a set: for each group a leader and its workers, transcribed from it. Pure.

Source: kubernetes-sigs/lws, pkg/controllers/, pkg/webhooks/pod_webhook.go and pkg/utils/pod/pod_utils.go.
"""

from __future__ import annotations

import copy

from tests.cluster.cluster import Manifest
from tests.cluster.operators.manifests import add_labels, add_variables, pod_of, service

DEFINED = (("leaderworkerset.x-k8s.io/v1",), "LeaderWorkerSet")
PREFIX = "leaderworkerset.sigs.k8s.io"


def objects_of(workload: Manifest) -> list[Manifest]:
    """Return the Service, and the pods of each group, its leader first."""
    name, namespace = workload["metadata"]["name"], workload["metadata"]["namespace"]
    about = workload["spec"]["leaderWorkerTemplate"]
    pods = []
    for group in range(workload["spec"].get("replicas", 1)):
        leader = f"{name}-{group}"
        for number in range(about["size"]):
            template = copy.deepcopy(
                about["workerTemplate"] if number else about.get("leaderTemplate", about["workerTemplate"])
            )
            add_labels(template, {f"{PREFIX}/name": name, f"{PREFIX}/group-index": str(group)})
            host = f"{leader}-{number}" if number else leader  # the names of a StatefulSet's pods, which are their host names
            template["spec"].update(hostname=host, subdomain=name)
            for container in template["spec"]["containers"]:
                address = f"{leader}.{name}.{namespace}"
                own = container.pop("env", [])
                variables = {
                    "LWS_LEADER_ADDRESS": address,
                    "LWS_GROUP_SIZE": str(about["size"]),
                    "LWS_WORKER_INDEX": str(number),
                }
                add_variables(container, variables)
                container["env"] += own
            pods.append(pod_of(host, template))
    return [service(name, {f"{PREFIX}/name": name}, not_ready_too=True), *pods]
