"""Open MPI's variables, which Horovod, DeepSpeed, mmengine and scripts written for mpirun read.

Source: Open MPI's ompi/mca/schizo and mpirun(1), "Exported Environment Variables".
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import PMIX, Contract, mpi_offer

_ONE_MACHINE = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_coll": "^han"}
"""For several nodes on one machine: their ranks' shared memory would collide, and `han` of Open MPI 5.0 reduces wrongly."""


def pmix_defaults(mpi: str, one_machine: bool) -> dict[str, str]:
    """Return the defaults of a rank with PMIx: Open MPI 4 looks for PMIx only under launchers that it knows.

    Without PMIx, the same variable would make MPI_Init fail. `one_machine`: several nodes of the job are the same machine.
    """
    if PMIX not in mpi_offer(mpi):
        return {}
    return {"OMPI_MCA_schizo": "^orte", **(_ONE_MACHINE if one_machine else {})}


CONTRACT = Contract(
    job=lambda job: {"OMPI_COMM_WORLD_SIZE": str(job.size), "OMPI_UNIVERSE_SIZE": str(job.universe_size)},
    node=lambda job, node: {"OMPI_COMM_WORLD_LOCAL_SIZE": str(node.local_size)},
    # Open MPI's NODE_RANK is the rank's place on its node, not the place of the node.
    rank=lambda job, node, rank: {
        "OMPI_COMM_WORLD_RANK": str(rank.rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank.local_rank),
        "OMPI_COMM_WORLD_NODE_RANK": str(rank.local_rank),
    },
    # A waiting rank yields its CPU on a crowded machine, as with Open MPI's mpirun.
    defaults=lambda job, node: {"OMPI_MCA_mpi_yield_when_idle": "1"} if node.crowded and mpi_offer(job.mpi) else {},
    scrubbed=("PMIX_*", "OMPI_*", "PRTE_*", "JSM_NAMESPACE_*"),
)
