"""JAX's variables of a multi-process job: dropped. Source: jax/_src/clusters."""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract

CONTRACT = Contract(scrubbed=("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"))
