"""What Kubeflow's training-operator 1.9 makes of an MPIJob of the API v1, transcribed from it. Pure.

Source: kubeflow/trainer, branch release-1.9, pkg/controller.v1/mpi/mpijob_controller.go, which grew out of mpi-operator's v1.
"""

from __future__ import annotations

from tests.cluster.cluster import Manifest
from tests.cluster.operators import mpi_operator
from tests.cluster.operators.manifests import add_labels, add_variables


def objects_of(job: Manifest) -> list[Manifest]:
    """Return what the operator makes of a job that has its namespace."""
    *objects, launcher = mpi_operator.objects_of(job)
    add_variables(
        launcher["spec"]["containers"][0],
        {"I_MPI_HYDRA_BOOTSTRAP": "rsh", "I_MPI_HYDRA_BOOTSTRAP_EXEC": f"{mpi_operator.CONFIG}/kubexec.sh"},
    )
    prefix = "training.kubeflow.org"
    add_labels(launcher, {f"{prefix}/job-name": job["metadata"]["name"], f"{prefix}/job-role": "master"})
    return [*objects, launcher]
