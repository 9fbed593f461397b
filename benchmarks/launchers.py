"""The launchers that are compared: how each is told to do the same work, and what it puts before a line.

A launcher gets the options that its manual names for this machine (root, one bridge, no name service) and no others: what
costs it time by default costs it time here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Work:
    """What is launched: as many ranks of the program on each host over ssh, or all `ranks` here when there are no hosts."""

    program: tuple[str, ...]
    ranks: int
    hosts: tuple[str, ...] = ()
    tagged: bool = False
    prints: tuple[str, ...] = ()
    """The lines of all ranks together, sorted, where the output is not what is measured."""
    dialect: str = ""
    """The launcher whose options mpilaunch gets too: openmpi, or for hosts on their own pdsh or clush; slurm in an allocation
    of these hosts, where nobody needs options for them."""
    options: tuple[str, ...] = ()
    """Options of that launcher."""

    @property
    def on_each(self) -> int:
        """Ranks of one host."""
        return self.ranks // len(self.hosts)

    @property
    def slots(self) -> str:
        """The hosts with their slots, as --host takes them."""
        return ",".join(f"{host}:{self.on_each}" if self.on_each > 1 else host for host in self.hosts)


@dataclass(frozen=True)
class Launcher:
    """One launcher.

    Attributes:
        name: in the tables.
        command: its program.
        argv: the argument list for a work, without the program.
        tag: what it puts before each line, with {rank} and {host}; "" where it puts nothing.
        local: it starts several ranks on this machine, without ssh, where a case does not say who does.
        remote: it starts ranks on hosts, by ssh, likewise.
        version: the arguments that print its version.
        versioned: the program that prints it, if the command itself does not.
    """

    name: str
    command: str
    argv: Callable[[Work], list[str]]
    tag: str
    local: bool = True
    remote: bool = True
    version: tuple[str, ...] = ("--version",)
    versioned: str = ""

    def installed(self) -> bool:
        """Whether it can be run here."""
        return shutil.which(self.command) is not None

    def can(self, on_hosts: bool) -> bool:
        """Whether it starts several ranks there, on hosts or on this machine."""
        return self.remote if on_hosts else self.local

    def version_text(self) -> str:
        """Return the number of its version."""
        done = subprocess.run([self.versioned or self.command, *self.version], capture_output=True, text=True, check=False)
        number = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
        return number[0] if number else "of unknown version"


OPEN_MPI_NETWORK = "10.88.0.0/16"
"""Of the testbed; without it a daemon may call back on an address that only it has."""

ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""What the launchers need in their environment here."""


def _mpilaunch(work: Work) -> list[str]:
    if work.dialect == "slurm":
        return [*(["--tag-output"] if work.tagged else []), *work.program]
    if work.dialect:
        return ["--dialect", work.dialect, *{"openmpi": _mpirun, "pdsh": _pdsh, "clush": _clush}[work.dialect](work)]
    where = ["-H", work.slots] if work.hosts else ["--oversubscribe"]
    return ["-np", str(work.ranks), *where, *(["--tag-output"] if work.tagged else []), *work.program]


def _mpirun(work: Work) -> list[str]:
    # With its several spawning threads, 4.1 mostly does not end after 32 ranks or more that end at once.
    where = ["--mca", "odls_base_num_threads", "0"]
    if work.hosts:
        where += ["--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "oob_tcp_if_include", OPEN_MPI_NETWORK]
        where += [] if work.dialect == "slurm" else ["--host", work.slots]
    else:
        where += ["--oversubscribe"]
    return ["-np", str(work.ranks), *where, *(["--tag-output"] if work.tagged else []), *work.program]


def _hydra(work: Work) -> list[str]:
    where = ["-launcher", "ssh", "-hosts", ",".join(work.hosts), "-ppn", str(work.on_each)] if work.hosts else []
    where = ["-launcher", "slurm", "-ppn", str(work.on_each)] if work.dialect == "slurm" else where
    return [*where, "-n", str(work.ranks), *(["-prepend-rank"] if work.tagged else []), *work.program]


def _pdsh(work: Work) -> list[str]:
    return ["-R", "ssh", *work.options, "-S", *([] if work.tagged else ["-N"]), "-w", ",".join(work.hosts), *work.program]


def _clush(work: Work) -> list[str]:
    return ["-S", *work.options, *([] if work.tagged else ["-N"]), "-w", ",".join(work.hosts), *work.program]


def _srun(work: Work) -> list[str]:
    return [*(["--label"] if work.tagged else []), *work.program]


def _torchrun(work: Work) -> list[str]:
    return ["--standalone", "--nproc-per-node", str(work.ranks), "--no-python", *work.program]


TORCH_VERSION = tuple(_torchrun(Work((sys.executable, "-c", "import torch; print(torch.__version__)"), 1)))
"""For torchrun, which has no option that prints it."""


def _beside_python(name: str) -> str:
    """Return the path of a command of this Python's environment."""
    return str(Path(sys.executable).parent / name)


def launchers() -> tuple[Launcher, Sequence[Launcher], Sequence[Launcher]]:
    """Return mpilaunch, the peers that are installed, and those that are not."""
    ours = Launcher("mpilaunch", _beside_python("mpilaunch"), _mpilaunch, "[1,{rank}]<stdout>:")
    if not ours.installed():
        raise SystemExit(f"bench: {ours.command} is missing: python -m pip install --editable .")
    peers = (
        Launcher("mpirun", "mpirun.openmpi", _mpirun, "[1,{rank}]<stdout>:"),
        Launcher("Hydra", "mpiexec.hydra", _hydra, "[{rank}] "),
        Launcher("pdsh", "pdsh", _pdsh, "{host}: ", local=False, version=("-V",)),
        Launcher("clush", "clush", _clush, "{host}: ", local=False),
        Launcher("srun", "srun", _srun, "{rank}: ", local=False, remote=False, version=("-V",), versioned="slurmd"),
        Launcher("torchrun", _beside_python("torchrun"), _torchrun, "", remote=False, version=TORCH_VERSION),
    )
    return ours, [peer for peer in peers if peer.installed()], [peer for peer in peers if not peer.installed()]
