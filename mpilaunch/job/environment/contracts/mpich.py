"""MPICH's variables to find PMI. Intel MPI and MVAPICH read them too.

Source: MPICH's src/pm/hydra and src/pmi; ../docs/mpi.md describes the protocol.
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import PMI, PMI_DESCRIPTOR, Contract, mpi_offer

CONTRACT = Contract(
    # With a port, the daemon adds its number and password.
    rank=lambda job, node, rank: (
        {
            **({"PMI_SPAWNED": "1"} if job.spawned else {}),
            **({} if job.pmi_port else {"PMI_FD": str(PMI_DESCRIPTOR)}),
            "PMI_RANK": str(rank.rank),
            "PMI_SIZE": str(job.size),
        }
        if PMI in mpi_offer(job.mpi)
        else {}
    ),
    # MPICH would otherwise have to choose between PMI and PMIx.
    defaults=lambda job, node: (
        {"MPIR_CVAR_PMI_VERSION": "2" if job.mpi == "pmi2" else "1"} if PMI in mpi_offer(job.mpi) else {}
    ),
    also_fixed=frozenset({"PMI_PORT", "PMI_ID", "PMI_FD", "PMI_SPAWNED"}),
    scrubbed=("PMI_*", "PMI2_*", "MV2_COMM_WORLD_*", "HYD*", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME"),
)
