"""What JobSet's controller makes of a JobSet, and Kubernetes of its Jobs, transcribed from both. Pure.

Sources: kubernetes-sigs/jobset, pkg/controllers/jobset_controller.go and pkg/webhooks/jobset_webhook.go; for the pods of an
Indexed Job, which the cluster of the tests is too old for, kubernetes/kubernetes, pkg/controller/job/indexed_job_utils.go.
"""

from __future__ import annotations

import copy

from tests.cluster.cluster import Manifest
from tests.cluster.operators.manifests import add_labels, add_variables, pod_of, service

DEFINED = (("jobset.x-k8s.io/v1alpha2",), "JobSet")
NAME, INDEX = "jobset.sigs.k8s.io/jobset-name", "batch.kubernetes.io/job-completion-index"
SUFFIX = "x7k2p"
"""Of the names of pods; Kubernetes makes another one for each."""


def objects_of(job_set: Manifest) -> list[Manifest]:
    """Return the Service, and the pods in the order of the Jobs."""
    name, spec = job_set["metadata"]["name"], job_set["spec"]
    subdomain = spec.get("network", {}).get("subdomain") or name
    pods = []
    for replicated in spec["replicatedJobs"]:
        for number in range(replicated.get("replicas", 1)):
            job, about = f"{name}-{replicated['name']}-{number}", replicated["template"]["spec"]
            for index in range(about.get("completions", about.get("parallelism", 1))):
                template = copy.deepcopy(about["template"])
                add_labels(template, {NAME: name, INDEX: str(index)})
                template["metadata"]["annotations"] = {INDEX: str(index)}
                template["spec"].setdefault("restartPolicy", "OnFailure")
                template["spec"].update(subdomain=subdomain, hostname=f"{job}-{index}")
                for container in template["spec"]["containers"]:
                    add_variables(container, {"JOB_COMPLETION_INDEX": str(index)})
                pods.append(pod_of(f"{job}-{index}-{SUFFIX}", template))
    return [service(subdomain, {NAME: name}, not_ready_too=True), *pods]
