"""MPICH's variables to find PMI. Intel MPI and MVAPICH read them too.

Source: MPICH's src/pm/hydra and src/pmi; ../docs/mpi.md describes the protocol.
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import (
    PMI,
    PMI_DESCRIPTOR,
    Contract,
    JobFacts,
    NodePlace,
    RankPlace,
    Variables,
    mpi_offer,
)


def rank(job: JobFacts, node: NodePlace, facts: RankPlace) -> Variables:
    """Return the rank's PMI connection and place. With a port, the daemon adds its number and password."""
    if PMI not in mpi_offer(job.mpi):
        return {}
    return {
        **({"PMI_SPAWNED": "1"} if job.spawned else {}),
        **({} if job.pmi_port else {"PMI_FD": str(PMI_DESCRIPTOR)}),
        "PMI_RANK": str(facts.rank),
        "PMI_SIZE": str(job.size),
    }


def defaults(job: JobFacts, node: NodePlace) -> Variables:
    """Return the version of PMI to use: MPICH would otherwise have to choose between PMI and PMIx."""
    return {"MPIR_CVAR_PMI_VERSION": "2" if job.mpi == "pmi2" else "1"} if PMI in mpi_offer(job.mpi) else {}


CONTRACT = Contract(
    rank=rank,
    defaults=defaults,
    also_fixed=frozenset({"PMI_PORT", "PMI_ID", "PMI_FD", "PMI_SPAWNED"}),
    scrubbed=("PMI_*", "PMI2_*", "MV2_COMM_WORLD_*", "HYD*", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME"),
)
