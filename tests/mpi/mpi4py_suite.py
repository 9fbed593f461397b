"""mpi4py's own tests, from its source archive, with 2 ranks: under the launcher of each MPI library, then under mpilaunch.

    python -m tests.mpi.mpi4py_suite [--all-modules] [FAMILY ...]

What fails under both is the library's; what fails under mpilaunch alone is ours, and the exit code is 1. All modules take some
minutes for each library and launcher; without `--all-modules` those run in which ranks meet.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mpi.families import CACHE, FAMILIES, ROOT, Family, launch_with_mpilaunch
from tests.mpi.limits import needs_of
from tests.mpi.places import PLACES, Place
from tests.mpi.runs import AS_ROOT
from tests.mpi.works import WORKS

VERSION = "4.1.2"
"""Of mpi4py, that of requirements/."""
CHOSEN = ("debian-openmpi", "openmpi-5", "debian-mpich", "mpich-5", "impi")
MODULES = tuple(f"test_{name}" for name in ("cco_", "comm", "p2p_", "dynproc", "spawn", "rma", "win", "environ", "request"))
LIMIT_SECONDS = 900
PLACE = Place("2 ranks", (("local", 2),))


@dataclass(frozen=True)
class Outcome:
    """What one launcher made of the tests.

    Attributes:
        tests: that every rank ran; None when they do not agree, or did not get that far.
        failed: their names.
        said: the end of the output.
    """

    tests: int | None
    failed: frozenset[str]
    said: str


def source() -> Path:
    """Return the directory with the tests, fetched once."""
    place = CACHE / f"mpi4py-{VERSION}"
    if not place.exists():
        python = FAMILIES[0].python
        fetch = [python, "-m", "pip", "--quiet", "download", "--no-deps", "--no-binary", "mpi4py", f"mpi4py=={VERSION}"]
        subprocess.run(fetch, cwd=CACHE, check=True)
        with tarfile.open(CACHE / f"mpi4py-{VERSION}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    return place / "test"


def run(family: Family, ours: bool, modules: Sequence[str]) -> Outcome:
    """Run the tests of a library under one launcher."""
    words = [word for module in modules for word in ("-i", module)]
    apps = [(2, [family.python, str(source() / "runtests.py"), "--no-builddir", *words])]
    variables = dict(family.variables)
    for need in {need.reason: need for work in WORKS for need in needs_of(family.name, work.name, PLACES["2"])}.values():
        variables.update(need.variables)
    own = [family.own, *family.arguments(PLACE, apps, variables)]
    argv = launch_with_mpilaunch(PLACE, apps, variables) if ours else own
    environment = {**os.environ, **AS_ROOT, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'agents'}"}
    # A rank whose tests failed exits with 1, and the other is to end its own, as under the libraries' launchers.
    environment["MPILAUNCH_CONTINUE_ON_ERROR"] = "true"
    done = subprocess.run(
        ["timeout", "--kill-after=10", str(LIMIT_SECONDS), *argv],
        cwd=CACHE,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    said = done.stdout.decode(errors="replace")
    ran = re.findall(r"^Ran (\d+) tests", said, re.M)
    agreed = int(ran[0]) if len(ran) == 2 and ran[0] == ran[1] else None
    return Outcome(agreed, frozenset(re.findall(r"^(?:FAIL|ERROR): (\S+ \(\S+\))", said, re.M)), said[-2000:])


def main() -> int:
    """Run, print a line for each library, and return 1 when something fails under mpilaunch alone."""
    parser = argparse.ArgumentParser(description="Run mpi4py's own tests under each library's launcher, and under mpilaunch.")
    parser.add_argument("--all-modules", action="store_true", help="run all tests, not only those in which ranks meet")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"any of {' '.join(family.name for family in FAMILIES)}")
    arguments = parser.parse_args()
    modules = () if arguments.all_modules else MODULES
    bad = False
    for family in FAMILIES:
        if family.name not in (arguments.families or CHOSEN):
            continue
        theirs, ours = run(family, False, modules), run(family, True, modules)
        alone = ours.failed - theirs.failed
        print(f"{family.name}: own launcher {_words(theirs)}; mpilaunch {_words(ours)}, {len(alone)} of them alone", flush=True)
        if alone or (ours.tests is None and theirs.tests is not None):
            bad = True
            print("\n".join(sorted(alone)), ours.said, sep="\n", file=sys.stderr)
    return int(bad)


def _words(outcome: Outcome) -> str:
    return "did not get to the end" if outcome.tests is None else f"{outcome.tests} tests, {len(outcome.failed)} failed"


if __name__ == "__main__":
    sys.exit(main())
