"""JAX's variables, by which `jax.distributed.initialize()` needs no arguments, and MaxText's.

Source: jax/_src/distributed.py, jax/_src/clusters; `initialize_jax_for_gpu` of MaxText.
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract, JobFacts, NodePlace, RankPlace, Variables


def _job(job: JobFacts) -> Variables:
    """Return the coordinator's address.

    JAX then reads its place from Open MPI's variables if it finds a URI of mpirun, which may be empty: with any other value
    MPI_Comm_spawn of Open MPI would try to reach that mpirun.
    """
    variables = {"JAX_COORDINATOR_ADDRESS": job.second_address, "OMPI_MCA_orte_hnp_uri": "", "NNODES": str(job.node_count)}
    # MaxText takes NODE_RANK, the number of the node, for that of the process.
    if job.size == job.node_count:
        variables |= {"JAX_COORDINATOR_IP": job.master_addr, "JAX_COORDINATOR_PORT": job.second_port}
    return variables


def _rank(job: JobFacts, node: NodePlace, rank: RankPlace) -> Variables:
    """Return the GPUs of a rank that has its own: JAX would use only number LOCAL_RANK of those that the rank sees."""
    return {"JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(rank.gpus)))} if rank.gpus else {}


_NAMES = ("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_IP", "JAX_COORDINATOR_PORT", "NNODES")

CONTRACT = Contract(
    job=_job,
    rank=_rank,
    overridable=frozenset({*_NAMES, "OMPI_MCA_orte_hnp_uri"}),
    scrubbed=("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_LOCAL_DEVICE_IDS", *_NAMES),
)
