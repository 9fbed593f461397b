"""Intel MPI's and oneCCL's variables.

Source: Hydra's MPI_LOCALRANKID and MPI_LOCALNRANKS, which Intel MPI's launcher sets too; oneCCL's environment variables.
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import PMI, Contract, mpi_offer

CONTRACT = Contract(
    rank=lambda job, node, rank: (
        {"MPI_LOCALRANKID": str(rank.local_rank), "MPI_LOCALNRANKS": str(node.local_size)} if PMI in mpi_offer(job.mpi) else {}
    ),
    # The last names Slurm's libpmi, for srun: a rank would find no job there.
    scrubbed=("MPI_LOCAL*", "CCL_LOCAL_RANK", "CCL_LOCAL_SIZE", "I_MPI_PMI_LIBRARY"),
)
