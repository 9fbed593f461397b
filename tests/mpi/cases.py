"""The matrix: every family in every language does every work at every place under mpilaunch; once under its own launcher."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.mpi.families import FAMILIES, Family
from tests.mpi.limits import Leftover, Limit, leftover_of, limit_of
from tests.mpi.places import PLACES, Place
from tests.mpi.works import WORKS, Work

LANGUAGES = ("C", "mpi4py")
MPILAUNCH, OWN = "mpilaunch", "own"
LAUNCHERS = (MPILAUNCH, OWN)


@dataclass(frozen=True)
class Case:
    """One run of one command."""

    family: Family
    language: str
    work: Work
    place: Place
    launcher: str

    def __str__(self) -> str:
        return "-".join((self.family.name, self.language, self.work.name, self.place.name, self.launcher)).replace(" ", "_")

    @property
    def limit(self) -> Limit | None:
        """What the library itself cannot do here."""
        return limit_of(self.family.name, self.work.name, self.place)

    @property
    def leftover(self) -> Leftover | None:
        """What the library itself leaves behind here."""
        return leftover_of(self.family.name, self.work.name)

    @property
    def in_test_slow(self) -> bool:
        """Whether `make test-slow` runs it, too."""
        places = self.work.places if self.family.package else self.work.quick
        chosen = self.language in self.family.in_test_slow and self.place.name in places
        # A hang costs seconds each time: `make test-slow` looks at it once.
        hangs = self.limit is not None and not self.limit.says and self.work.name != "ring"
        return chosen and self.launcher == MPILAUNCH and not hangs


def every_case() -> Iterator[Case]:
    """Yield all cases, those of one family one after the other."""
    for family in FAMILIES:
        for language in LANGUAGES if family.compiler else ("mpi4py",):
            for work in WORKS:
                for place in work.places:
                    for launcher in LAUNCHERS:
                        case = Case(family, language, work, PLACES[place], launcher)
                        if language in work.languages and (launcher == MPILAUNCH or _own_can(case)):
                            yield case


def _own_can(case: Case) -> bool:
    """Return whether a family's own launcher is run for comparison: where it is to do the same, and once is enough."""
    return case.work.own and not case.place.only_ours and (case.language == "C" or not case.family.compiler)
