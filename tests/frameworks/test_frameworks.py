"""Programs as each framework's documents write them, on two ranks here and on two hosts; then without what makes them one job.

Each test fills one row of docs/frameworks.md.
"""

from __future__ import annotations

import pytest

from tests.frameworks.places import Place, frameworks_python
from tests.frameworks.results import Seen

QUIET = ("-x", "TF_CPP_MIN_LOG_LEVEL=2")
ALONE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "PMI_SIZE", "PMI_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
"""Without these a program that was made for torchrun or mpirun does not know that it is one of several."""


@pytest.mark.framework("PyTorch", "torch", '`init_process_group("gloo")`', "none")
def test_torch(place: Place, seen: Seen) -> None:
    seen.ranks(place.ranks("torch_sum.py"), "rank 0 of 2 sum 3", "rank 1 of 2 sum 3")
    seen.fails(place.ranks("torch_sum.py", without=("RANK",)), "environment variable RANK expected, but not set")


@pytest.mark.framework("JAX", "jax", "`jax.distributed.initialize()`", "none")
def test_jax(place: Place, seen: Seen) -> None:
    seen.ranks(place.ranks("jax_sum.py"), "rank 0 of 2 sum 3", "rank 1 of 2 sum 3")
    without = ("JAX_COORDINATOR_ADDRESS", "OMPI_MCA_orte_hnp_uri")
    seen.fails(place.ranks("jax_sum.py", without=without), "coordinator_address should be defined")


@pytest.mark.framework("MaxText's start, JAX", "jax", "`initialize_jax_for_gpu`, here on CPUs", "one rank on each node")
def test_maxtext(place: Place, seen: Seen) -> None:
    # Both nodes are this machine.
    nodes = () if place.hosts else ("-H", "local:1,local:1")
    seen.ranks(place.ranks("maxtext_sum.py", *nodes), "rank 0 of 2 sum 3", "rank 1 of 2 sum 3")
    seen.fails(place.ranks("maxtext_sum.py", *nodes, without=("JAX_COORDINATOR_IP",)), "KeyError: 'JAX_COORDINATOR_IP'")


@pytest.mark.framework("TensorFlow", "tensorflow_cpu", "`MultiWorkerMirroredStrategy()`", "`--profile tf`")
def test_tensorflow_multi_worker(place: Place, seen: Seen) -> None:
    done = place.ranks("tf_multi_worker.py", *QUIET, "--profile", "tf")
    seen.ranks(done, "rank 0 of 2 sum 3 weight -6", "rank 1 of 2 sum 3 weight -6")
    seen.alone(place.ranks("tf_multi_worker.py", *QUIET), "rank 0 of 1 sum 1 weight -2")


@pytest.mark.framework(
    "TensorFlow", "tensorflow_cpu", "`ParameterServerStrategy`", "`--profile tf`, `-x ROLE_NAME=chief` before a program, ..."
)
def test_tensorflow_parameter_server(place: Place, seen: Seen) -> None:
    program = [frameworks_python(), "tf_parameter_server.py"]
    roles = [["-np", "1", *QUIET, "-x", f"ROLE_NAME={role}", *program, ":"] for role in ("chief", "worker", "worker", "ps")]
    done = place.mpilaunch("--profile", "tf", *[word for role in roles for word in role][:-1])
    seen.ranks(done, "chief of 2 workers: 4 on /job:ps/replica:0/task:0/device:CPU:0")
    seen.fails(place.ranks("tf_parameter_server.py", *QUIET), "Cluster spec must be non-empty")


@pytest.mark.framework("Lightning", "lightning", "`Trainer()`", "`--profile lightning`")
def test_lightning(place: Place, seen: Seen) -> None:
    done = place.ranks("lightning_fit.py", "--profile", "lightning")
    seen.ranks(done, "rank 0 of 2 steps 2 same weights True", "rank 1 of 2 steps 2 same weights True")
    seen.alone(place.ranks("lightning_fit.py"), "rank 0 of 1 steps 4 same weights True")


@pytest.mark.framework("Accelerate", "accelerate", "`Accelerator(cpu=True)`", "none")
def test_accelerate(place: Place, seen: Seen) -> None:
    seen.ranks(place.ranks("accelerate_sum.py"), "rank 0 of 2 sum 3 steps 2", "rank 1 of 2 sum 3 steps 2")
    seen.alone(place.ranks("accelerate_sum.py", without=ALONE), "rank 0 of 1 sum 1 steps 4")


@pytest.mark.framework("Transformers", "transformers", "`Trainer`, `use_cpu=True`", "none")
def test_transformers(place: Place, seen: Seen) -> None:
    seen.ranks(place.ranks("transformers_train.py"), "rank 0 of 2 sum 3 steps 2", "rank 1 of 2 sum 3 steps 2")
    seen.alone(place.ranks("transformers_train.py", without=ALONE), "rank 0 of 1 sum 1 steps 2")


@pytest.mark.framework("Dask", "dask_mpi", "`dask_mpi.initialize()`", "none; three ranks")
def test_dask(place: Place, seen: Seen) -> None:
    seen.ranks(place.ranks("dask_sum.py", count=3), "workers 1 sum 100")
    # A world of one has a scheduler only.
    alone = place.ranks("dask_sum.py", "--mpi", "none", "--timeout", "15", count=3)
    assert alone.returncode != 0 and not alone.stdout, alone.stdout
    seen.control = "never starts: each rank is a scheduler without workers"
