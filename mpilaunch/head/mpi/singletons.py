"""The reason why an MPI program has not found the other ranks and runs as a job of its own. Pure text."""

from __future__ import annotations

from typing import Any

from mpilaunch.head.nodes.link import LONGEST_NOTE


def singleton_warning(message: dict[str, Any], where: str, mode: str) -> str:
    """Return the warning.

    Args:
        message: the daemon's `singleton`.
        where: "rank 3 on node02".
        mode: the job's `--mpi`.
    """
    library, family, pmix_error = (message[key][:LONGEST_NOTE] for key in ("library", "family", "pmix_error"))
    needed, name = ("pmix", "PMIx") if family == "Open MPI" else ("pmi", "PMI-1")
    if needed not in message["offer"]:
        reason = f"--mpi {mode} offers no {name}, which {family} needs"
    elif needed == "pmix" and pmix_error:
        reason = f"no PMIx there, which Open MPI needs: {pmix_error}; install libpmix2, or use --pmix-library"
    else:
        reason = "it asked for neither PMI nor PMIx: was it built for another launcher?"
    alone = "has not found the other ranks, so it is a world of one"
    return f"{where} has an MPI library ({library}, {family}) and {alone}: {reason}"
