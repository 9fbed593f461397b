"""Warns once that an MPI program has not found the other ranks and runs as a job of its own, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpilaunch.head.nodes.link import LONGEST_NOTE, NodeLink
from mpilaunch.head.ranks import Ranks


class Singletons:
    """The MPI programs of one job that run alone; `mode` is the job's `--mpi`."""

    def __init__(self, mode: str, ranks: Ranks, warn: Callable[[str], None]) -> None:
        self._mode, self._ranks, self._warn = mode, ranks, warn
        self._warned = False

    def take(self, link: NodeLink, message: dict[str, Any]) -> None:
        """Handle a daemon's `singleton`; raises WireError for the rank of another node."""
        rank = message["rank"]
        self._ranks.check_rank(rank, link.node.index)
        if not self._warned:
            self._warned = True
            self._warn(singleton_warning(message, f"rank {rank} on {self._ranks.node_name(rank)}", self._mode))


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
        needs = "libpmix2, or --pmix-library, and a place to write, such as /tmp"
        reason = f"no PMIx there, which Open MPI needs: {pmix_error}; it takes {needs}"
    else:
        reason = "it asked for neither PMI nor PMIx: was it built for another launcher?"
    alone = "has not found the other ranks, so it is a world of one"
    return f"{where} has an MPI library ({library}, {family}) and {alone}: {reason}"
