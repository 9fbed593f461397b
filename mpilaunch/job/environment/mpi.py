"""The process-management interfaces offered to MPI programs: PMI, PMIx or both.

Pure. By default a rank is offered both, so that the user need not name the MPI library.
"""

from __future__ import annotations

PMI_DESCRIPTOR = 60
"""The rank's connection to PMI: above the descriptors that programs and shells open by number (bash takes 10 and 255)."""

PMI, PMIX = "pmi", "pmix"
"""A connection for PMI-1 and PMI-2, and the node's libpmix."""

_OFFERS = {"auto": (PMI, PMIX), "pmi1": (PMI,), "pmi2": (PMI,), "pmix": (PMIX,), "none": ()}


def mpi_offer(mpi: str) -> tuple[str, ...]:
    """Return the interfaces that a value of `--mpi` offers."""
    return _OFFERS[mpi]
