"""Open MPI's variables, which Horovod, DeepSpeed, mmengine and scripts written for mpirun read.

Source: Open MPI's ompi/mca/schizo and mpirun(1), "Exported Environment Variables".
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import Contract, JobFacts, NodePlace, RankPlace, Variables
from mpilaunch.job.environment.mpi import PMIX, mpi_offer

_ONE_MACHINE = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_coll": "^han"}
"""For nodes that are one machine: the shared memory of both would clash, and Open MPI 5.0 adds up wrong across them."""


def job(facts: JobFacts) -> Variables:
    """Return what every rank of the world shares."""
    return {"OMPI_COMM_WORLD_SIZE": str(facts.size), "OMPI_UNIVERSE_SIZE": str(facts.universe_size)}


def node(job: JobFacts, facts: NodePlace) -> Variables:
    """Return what every rank of a node shares."""
    return {"OMPI_COMM_WORLD_LOCAL_SIZE": str(facts.local_size)}


def rank(job: JobFacts, node: NodePlace, facts: RankPlace) -> Variables:
    """Return what one rank has. Open MPI's NODE_RANK is the place on the node, not the place of the node."""
    return {
        "OMPI_COMM_WORLD_RANK": str(facts.rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(facts.local_rank),
        "OMPI_COMM_WORLD_NODE_RANK": str(facts.local_rank),
    }


def defaults(job: JobFacts, node: NodePlace) -> Variables:
    """Return what lets a waiting rank yield its CPU on a crowded machine; Open MPI's own mpirun sets the same."""
    return {"OMPI_MCA_mpi_yield_when_idle": "1"} if node.crowded and mpi_offer(job.mpi) else {}


def pmix_defaults(mpi: str, one_machine: bool) -> dict[str, str]:
    """Return what a rank gets that has PMIx: Open MPI 4 looks for PMIx only under launchers that it knows.

    A rank without PMIx must not get it: the same variable would end it in MPI_Init.

    Args:
        one_machine: several nodes of the job are one machine, where the shared memory of their ranks would clash.
    """
    if PMIX not in mpi_offer(mpi):
        return {}
    return {"OMPI_MCA_schizo": "^orte", **(_ONE_MACHINE if one_machine else {})}


CONTRACT = Contract(job, node, rank, defaults, scrubbed=("PMIX_*", "OMPI_*", "PRTE_*", "JSM_NAMESPACE_*"))
