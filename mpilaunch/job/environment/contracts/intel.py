"""Intel MPI's and oneCCL's variables.

Source: Hydra's MPI_LOCALRANKID and MPI_LOCALNRANKS, which Intel MPI's launcher sets too; oneCCL's environment variables.
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import PMI, Contract, JobFacts, NodePlace, RankPlace, Variables, mpi_offer


def rank(job: JobFacts, node: NodePlace, facts: RankPlace) -> Variables:
    if PMI not in mpi_offer(job.mpi):
        return {}
    return {"MPI_LOCALRANKID": str(facts.local_rank), "MPI_LOCALNRANKS": str(node.local_size)}


CONTRACT = Contract(rank=rank, scrubbed=("MPI_LOCAL*", "CCL_LOCAL_RANK", "CCL_LOCAL_SIZE"))
