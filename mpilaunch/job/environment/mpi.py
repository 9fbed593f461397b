"""What ranks are offered so that MPI programs find each other, and the variables that go with it.

Pure. The same rank is offered PMI and PMIx at once: nobody has to say which MPI library it is.
"""

from __future__ import annotations

PMI_DESCRIPTOR = 60
"""Where a rank finds its connection to PMI: above what programs and shells open by number (bash takes 10 and 255)."""

PMI, PMIX = "pmi", "pmix"
"""What MPI programs may be offered: a connection for PMI-1 and PMI-2, and the node's libpmix."""

_OFFERS = {"auto": (PMI, PMIX), "pmi1": (PMI,), "pmi2": (PMI,), "pmix": (PMIX,), "none": ()}


def mpi_offer(mpi: str) -> tuple[str, ...]:
    """Return what `--mpi` offers."""
    return _OFFERS[mpi]


_ONE_MACHINE = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_coll": "^han"}
"""For nodes that are one machine: the shared memory of both would clash, and Open MPI 5.0 adds up wrong across them."""


def pmi_defaults(mpi: str) -> dict[str, str]:
    """Return what goes with PMI where neither node nor job says otherwise: MPICH finds PMIx too, and must be told which."""
    return {"MPIR_CVAR_PMI_VERSION": "2" if mpi == "pmi2" else "1"} if PMI in mpi_offer(mpi) else {}


def pmix_defaults(mpi: str, one_machine: bool) -> dict[str, str]:
    """Return what goes with PMIx: Open MPI 4 does not look for it under a launcher that it does not know.

    Only for ranks that have PMIx: without it the same variable ends them in MPI_Init.

    Args:
        one_machine: several nodes of the job are one machine, where the shared memory of their ranks would clash.
    """
    if PMIX not in mpi_offer(mpi):
        return {}
    return {"OMPI_MCA_schizo": "^orte", **(_ONE_MACHINE if one_machine else {})}


_YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1"}
"""Open MPI waits busily; its mpirun says the same on machines that it oversubscribes. MPICH gains nothing by its own."""


def crowd_defaults(mpi: str) -> dict[str, str]:
    """Return what goes with more ranks than CPUs on a machine: a rank that waits lets the others run."""
    return _YIELD if mpi_offer(mpi) else {}


def pmi_environment(
    *, rank: int, size: int, local_rank: int, local_size: int, spawned: bool = False, port: bool = False
) -> dict[str, str]:
    """Return what a rank needs to find its PMI server: where its connection is, and who it is. A port is added by its node."""
    return {
        **({"PMI_SPAWNED": "1"} if spawned else {}),
        **({} if port else {"PMI_FD": str(PMI_DESCRIPTOR)}),
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "MPI_LOCALRANKID": str(local_rank),
        "MPI_LOCALNRANKS": str(local_size),
    }
