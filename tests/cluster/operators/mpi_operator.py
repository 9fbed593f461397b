"""What Kubeflow's mpi-operator makes of an MPIJob, transcribed from it: v2beta1 from its 0.8.2, v1 and v1alpha2 from its 0.3.0.

Sources: kubeflow/mpi-operator, pkg/controller/mpi_job_controller.go and pkg/controllers/{v1,v1alpha2}/mpi_job_controller.go.
Pure: a job in, manifests out.
"""

from __future__ import annotations

import copy
from typing import Any

from tests.cluster.cluster import Manifest
from tests.cluster.images import LAUNCHER
from tests.cluster.operators.manifests import (
    SSH_FILES,
    add_labels,
    add_variables,
    config_map,
    mount,
    pod_of,
    service,
    ssh_secret,
)

DEFINED = (("kubeflow.org/v2beta1", "kubeflow.org/v1", "kubeflow.org/v1alpha2"), "MPIJob")
CONFIG, KUBE = "/etc/mpi", "/opt/kube"
NO_GPUS = {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
HOSTFILE = f"{CONFIG}/hostfile"
KUBEXEC = {
    "v1": f'#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n{KUBE}/kubectl exec ${{POD_NAME}} -- /bin/sh -c "$*"',
    "v1alpha2": f"""\
#!/bin/sh
set -x
POD_NAME=$1
while [ ${{POD_NAME%${{POD_NAME#?}}}} = "-" ]
do
shift
POD_NAME=$1
done
shift
{KUBE}/kubectl cp {KUBE}/hosts ${{POD_NAME}}:/etc/hosts_of_nodes
{KUBE}/kubectl exec ${{POD_NAME}} -- /bin/sh -c "cat /etc/hosts_of_nodes >> /etc/hosts && $*\"""",
}


def objects_of(job: Manifest, cluster_domain: str = "") -> list[Manifest]:
    """Return what the operator makes of a job that has its namespace."""
    version = job["apiVersion"].rpartition("/")[2]
    return _by_ssh(job, cluster_domain) if version == "v2beta1" else _by_kubectl(job, version)


def workers_of(job: Manifest) -> list[str]:
    """Return the names of the workers' pods, which are their host names too."""
    return [f"{job['metadata']['name']}-worker-{number}" for number in range(_replicas(job, "Worker")["replicas"])]


# v2beta1


def _by_ssh(job: Manifest, cluster_domain: str) -> list[Manifest]:
    name, spec = job["metadata"]["name"], job["spec"]
    namespace, also_worker = job["metadata"]["namespace"], spec.get("runLauncherAsWorker", False)
    slots, family = spec.get("slotsPerWorker", 1), spec.get("mpiImplementation", "OpenMPI")
    domain = f"{name}.{namespace}.svc" + (f".{cluster_domain}" if cluster_domain else "")
    form = "{}.{} slots={}\n" if family == "OpenMPI" else "{}.{}:{}\n"
    hosts = [*([f"{name}-launcher"] if also_worker else []), *workers_of(job)]
    config = {
        "hostfile": "".join(form.format(host, domain, slots) for host in hosts),
        "discover_hosts.sh": "".join(["#!/bin/sh\n", *(f"echo {host}.{domain}\n" for host in hosts)]),
    }
    selector = {"training.kubeflow.org/operator-name": "mpi-operator", "training.kubeflow.org/job-name": name}
    workers = []
    for worker in workers_of(job):
        template = _template(job, "Worker", _labels(name, "worker"))
        pod = template["spec"]
        pod.update(hostname=worker, subdomain=name)
        pod.setdefault("dnsConfig", {}).setdefault("searches", []).append(f"{name}.{namespace}.svc.cluster.local")
        container = pod["containers"][0]
        if not (container.get("command") or container.get("args")):
            container["command"] = ["/usr/sbin/sshd", "-De"]
        add_variables(container, {"K_MPI_JOB_ROLE": "worker"})
        _add_keys(pod, job)
        workers.append(pod_of(worker, template))
    template = _template(job, "Launcher", _labels(name, "launcher"))
    pod = template["spec"]
    pod.update(hostname=f"{name}-launcher", subdomain=name)
    variables = {
        "OpenMPI": {
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_default_hostfile": HOSTFILE,
            "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
            "OMPI_MCA_orte_set_default_slots": str(slots),
        },
        "Intel": {
            "I_MPI_HYDRA_HOST_FILE": HOSTFILE,
            "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-o ConnectionAttempts=10",
            "I_MPI_PERHOST": str(slots),
        },
        "MPICH": {"HYDRA_HOST_FILE": HOSTFILE, "HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10"},
    }[family]
    gpus = {} if also_worker else NO_GPUS
    add_variables(pod["containers"][0], {"K_MPI_JOB_ROLE": "launcher", **variables, **gpus})
    _add_keys(pod, job)
    _add_config(pod, name, {"hostfile": 0o444, "discover_hosts.sh": 0o555})
    return [
        service(name, selector, not_ready_too=also_worker),
        config_map(f"{name}-config", config),
        ssh_secret(f"{name}-ssh"),
        *workers,
        _job(name, template, job["spec"].get("runPolicy", {}).get("backoffLimit", 6)),
    ]


def _labels(name: str, role: str) -> dict[str, str]:
    prefix = "training.kubeflow.org"
    return {f"{prefix}/operator-name": "mpi-operator", f"{prefix}/job-name": name, f"{prefix}/job-role": role}


def _add_keys(pod: dict[str, Any], job: Manifest) -> None:
    where = job["spec"].get("sshAuthMountPath", "/root/.ssh")
    secret: dict[str, Any] = {"secretName": f"{job['metadata']['name']}-ssh", "items": SSH_FILES}
    if where == "/root/.ssh":
        secret["defaultMode"] = 0o600
    mount(pod, "ssh-auth", {"secret": secret}, where)


# v1 and v1alpha2


def _by_kubectl(job: Manifest, version: str) -> list[Manifest]:
    name, slots = job["metadata"]["name"], job["spec"].get("slotsPerWorker", 1)
    workers, launcher = workers_of(job), f"{name}-launcher"
    config = {"hostfile": "".join(f"{worker} slots={slots}\n" for worker in workers), "kubexec.sh": KUBEXEC[version]}
    modes = {"kubexec.sh": 0o555, "hostfile": 0o444}
    if version == "v1":
        config["discover_hosts.sh"] = "\n".join(["#!/bin/sh", *(f"echo {worker}:{slots}" for worker in workers)])
        modes["discover_hosts.sh"] = 0o555
    rules = [
        {"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods"]},
        {"verbs": ["create"], "apiGroups": [""], "resources": ["pods/exec"], "resourceNames": workers},
    ]
    subject = {"kind": "ServiceAccount", "name": launcher, "namespace": job["metadata"]["namespace"]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": launcher}
    about = {"apiVersion": role["apiGroup"] + "/v1", "metadata": {"name": launcher}}
    pods = []
    for worker in workers:
        template = _template(job, "Worker", {"mpi-job-name": name})
        container = template["spec"]["containers"][0]
        if not container.get("command"):
            container.update(command=["sleep"], args=["365d"])
        _add_config(template["spec"], name, {"kubexec.sh": 0o555})
        pods.append(pod_of(worker, template))
    template = _template(job, "Launcher", {"mpi-job-name": name})
    pod = template["spec"]
    pod["serviceAccountName"] = launcher
    variables = {"OMPI_MCA_plm_rsh_agent": f"{CONFIG}/kubexec.sh", "OMPI_MCA_orte_default_hostfile": HOSTFILE}
    add_variables(pod["containers"][0], {**variables, **NO_GPUS})
    mount(pod, "mpi-job-kubectl", {"emptyDir": {}}, KUBE)
    _add_config(pod, name, modes)
    # Theirs waits for the workers too, by its own program.
    delivery = {
        "name": "kubectl-delivery",
        "image": LAUNCHER,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", f"cp /usr/bin/kubectl {KUBE}/kubectl; touch {KUBE}/hosts"],
        "volumeMounts": [{"name": "mpi-job-kubectl", "mountPath": KUBE}],
    }
    pod.setdefault("initContainers", []).append(delivery)
    return [
        config_map(f"{name}-config", config),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": launcher}},
        {**about, "kind": "Role", "rules": rules},
        {**about, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]},
        *pods,
        pod_of(launcher, template) if version == "v1" else _job(name, template, job["spec"].get("backoffLimit", 6)),
    ]


# Pods


def _replicas(job: Manifest, kind: str) -> dict[str, Any]:
    replicas: dict[str, Any] = job["spec"]["mpiReplicaSpecs"][kind]
    return replicas


def _template(job: Manifest, kind: str, labels: dict[str, str]) -> dict[str, Any]:
    replicas = _replicas(job, kind)
    template: dict[str, Any] = copy.deepcopy(replicas["template"])
    add_labels(template, labels)
    template["spec"]["restartPolicy"] = replicas.get("restartPolicy", "OnFailure" if kind == "Launcher" else "Never")
    return template


def _job(name: str, template: dict[str, Any], backoff_limit: int) -> Manifest:
    spec = {"backoffLimit": backoff_limit, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"{name}-launcher"}, "spec": spec}


def _add_config(pod: dict[str, Any], name: str, modes: dict[str, int]) -> None:
    items = [{"key": key, "path": key, "mode": mode} for key, mode in modes.items()]
    mount(pod, "mpi-job-config", {"configMap": {"name": f"{name}-config", "items": items}}, CONFIG)
