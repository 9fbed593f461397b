"""The manifest of the examples, unchanged, from its Service to the log of its Job; and a launcher as an operator makes it."""

from __future__ import annotations

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.jobs import LATER, MANIFEST, Jobs, launcher_manifest

SCRIPT = """\
#!/bin/sh
set -x
POD_NAME=$1
shift
/usr/bin/kubectl exec ${POD_NAME} --container main -- /bin/sh -c "$*"
"""
"""What Kubeflow's operators put into the launcher's /etc/mpi, but for the place of kubectl."""


def test_the_manifest_of_the_examples(cluster: Cluster) -> None:
    namespace = "--namespace=training"
    cluster.kubectl("create", "namespace", "training")
    cluster.kubectl("apply", namespace, f"--filename={MANIFEST}")
    workers = [cluster.pod(f"job-worker-{number}", "training") for number in range(2)]
    cluster.kubectl("wait", namespace, "--for=condition=complete", "--timeout=50s", "job/launcher")
    said = sorted(cluster.kubectl("logs", namespace, "job/launcher").splitlines())
    assert len(said) == 4
    for rank, line in enumerate(said):
        assert line.startswith(f"[{rank}] rank {rank} of 4 on job-worker-{rank // 2}: the sum of 262144 numbers is right, ")
    assert [pod.left() for pod in workers] == [{}, {}]
    cluster.kubectl("delete", namespace, f"--filename={MANIFEST}")
    cluster.kubectl("wait", namespace, "--for=delete", "--timeout=50s", "pods", "--all")


@pytest.mark.parametrize("code", [0, 7])
def test_a_launcher_of_an_operator_needs_no_option(jobs: Jobs, code: int) -> None:
    hostfile = "".join(f"{pod.name} slots=2\n" for pod in jobs.workers)
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "job-config"}}
    jobs.apply({**config, "data": {"hostfile": hostfile, "kubexec.sh": SCRIPT}})
    env = {
        "OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
    }
    program = f'echo $RANK $(hostname) ${{NVIDIA_VISIBLE_DEVICES-unset}}; [ $RANK != 2 ] || {{ {LATER}; exit {code}; }}'
    items = [{"key": "hostfile", "path": "hostfile", "mode": 0o444}, {"key": "kubexec.sh", "path": "kubexec.sh", "mode": 0o555}]
    name = f"job-launcher-{code}"
    pod = launcher_manifest(name, ["mpilaunch", "sh", "-c", program], env)
    pod["spec"]["volumes"] = [{"name": "config", "configMap": {"name": "job-config", "items": items}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "config", "mountPath": "/etc/mpi"}]
    jobs.apply(pod)
    ended = jobs.cluster.until_phase(name, jobs.namespace, "Failed" if code else "Succeeded")
    said = jobs.kubectl("logs", name)
    assert ended["containerStatuses"][0]["state"]["terminated"]["exitCode"] == code, said
    for rank in range(4):
        assert f"{rank} job-worker-{rank // 2} unset\n" in said
    jobs.delete(name)
