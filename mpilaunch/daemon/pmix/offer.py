"""The offer of PMIx on this node: made where a program may use it and a libpmix is found; else the reason why not."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpilaunch.daemon.pmix.ranks import PmixRanks
    from mpilaunch.daemon.ranks.spawn import App

PMI, PMIX = "pmi", "pmix"
"""The offers to the ranks of a world."""


class PmixOffer:
    """The PMIx of one node.

    Attributes:
        ranks: those that have it, None while no program may use it.

    Args:
        make: makes `ranks`.
    """

    def __init__(self, make: Callable[[], PmixRanks]) -> None:
        self.ranks: PmixRanks | None = None
        self._make = make
        self._reason = ""
        self._harmless: set[bytes] = set()

    def start(self, description: dict[str, Any], apps: list[App], ready: Callable[[str], None]) -> None:
        """Start PMIx for the ranks of a world that run these apps; call `ready` when they can start.

        `ready` gets "", or the reason why they cannot: there is no PMIx, and it is the only offer.
        """
        if PMIX not in description["offer"]:
            ready("")
            return
        from mpilaunch.daemon.pmix.search import Program, cannot_use_mpi

        self._harmless.update(app.path for app in apps if cannot_use_mpi(app.path, app.environment))
        users = [
            Program(app.path, app.arguments, app.environment, app.directory) for app in apps if app.path not in self._harmless
        ]
        if PMI in description["offer"]:
            users = [program for program in users if not program.takes_pmi()]
        if not users:
            ready("")
            return
        libpmix = users[0].libpmix(description["library"])
        only_pmix = PMI not in description["offer"]
        if not libpmix.libraries:
            self._reason = "no libpmix is installed"
            ready(self._reason if only_pmix else "")
            return
        ranks = self.ranks = self.ranks or self._make()
        hostname = description["hosts"][description["node"]]
        ranks.start(description["world"], libpmix, hostname, lambda: ready(ranks.reason if only_pmix else ""))

    @property
    def error(self) -> str:
        """Why there is no PMIx, "" where it was not needed or works."""
        return self._reason if self.ranks is None else self.ranks.reason

    def is_harmless(self, program: bytes) -> bool:
        """Return whether a program was found to use no MPI."""
        return program in self._harmless
