"""MaxText's own start on GPUs: its four variables, with the words of `initialize_jax_for_gpu`."""

import os

import jax
from jax.experimental import multihost_utils

jax.distributed.initialize(
    coordinator_address=f"{os.environ['JAX_COORDINATOR_IP']}:{os.environ['JAX_COORDINATOR_PORT']}",
    num_processes=int(os.environ["NNODES"]),
    process_id=int(os.environ["NODE_RANK"]),
)
total = multihost_utils.process_allgather(jax.numpy.array([jax.process_index() + 1.0])).sum()
print(f"rank {jax.process_index()} of {jax.process_count()} sum {total:g}", flush=True)
