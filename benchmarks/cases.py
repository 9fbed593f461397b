"""The rows of the bench: what each launcher does, how often, and which peers do it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from groups import inside
from launchers import Work
from slurm import Slurm, installed

from mpilaunch.hosts.nodeset import fold
from tests.support.hosts import Hosts

CHECKOUT = Path(__file__).resolve().parent.parent
LINE = "x" * 83
"""A line that ranks print in the rows that measure output, without its newline."""


@dataclass(frozen=True)
class Case:
    """Work that every capable launcher does `rounds` times, after a first time that does not count."""

    key: str
    title: str
    work: Work
    rounds: int
    limit: float
    lines: int = 0
    """Number of times that each rank prints LINE; 0 for rows that do not measure output."""
    peers: tuple[str, ...] | None = None
    """The peers to measure; None for all capable ones."""
    hangs: bool = False
    """Whether the program itself hangs sometimes, under any launcher."""
    cpu_per_host: bool = False
    """Whether a second row has the CPU time."""
    before: tuple[str, ...] = ()
    """Words before the launcher's command."""


def make_cases(hosts: Hosts, quick: bool, group: Path) -> list[Case]:
    """Return what is measured; `group` is a control group."""
    lines = 240_000 if quick else 2_400_000
    script = hosts.shared / "lines"
    script.write_text(f"#!/bin/sh\nyes {LINE} | head -c {lines * (len(LINE) + 1)}\n")
    script.chmod(0o755)
    every = tuple(hosts.names)
    prints = Work((str(script),), 2, tagged=True)
    size = f"{lines * (len(LINE) + 1) / 1e6:.0f} MB of {len(LINE) + 1}-byte lines, tagged"
    return [
        Case("local-2", "here, `-np 2 true`", Work(("true",), 2), 5 if quick else 25, 30.0),
        Case("local-64", "here, `-np 64 true`", Work(("true",), 64), 3 if quick else 15, 30.0),
        Case("ssh-1", "1 ssh host, `hostname`", Work(("hostname",), 1, every[:1], prints=every[:1]), 3 if quick else 15, 30.0),
        Case(
            f"ssh-{len(every)}",
            f"{len(every)} ssh hosts, `hostname`",
            Work(("hostname",), len(every), every, prints=every),
            2 if quick else 5,
            60.0,
            cpu_per_host=True,
        ),
        Case("output-local", f"2 ranks here, each {size}", prints, 2 if quick else 3, 120.0, lines, ("mpirun", "Hydra")),
        Case(
            "output-ssh",
            f"2 ssh hosts, each {size}",
            replace(prints, hosts=every[:2]),
            2 if quick else 3,
            120.0,
            lines,
            ("mpirun", "Hydra", "pdsh"),
        ),
        Case(
            "output-mpirun",
            f"2 ranks here, each {size}, with mpirun's options",
            replace(prints, dialect="openmpi"),
            2 if quick else 3,
            120.0,
            lines,
            ("mpirun",),
        ),
        *hosts_cases(every, quick),
        *mpi_cases(hosts, quick, group),
        *torch_cases(quick),
    ]


def hosts_cases(every: tuple[str, ...], quick: bool) -> Iterator[Case]:
    """Yield commands on hosts that are on their own, in the options of pdsh and clush."""
    rounds, both = 2 if quick else 5, ("pdsh", "clush")
    eight = Work(("hostname",), len(every), every, prints=every, dialect="pdsh", options=("-f", "8"))
    yield Case("hosts-window", f"{len(every)} ssh hosts, 8 at a time, `hostname`", eight, rounds, 60.0, peers=both)
    names = tuple(f"n{number:03}" for number in range(1, 201))
    here = Work(("echo", "%h"), len(names), names, prints=names, dialect="pdsh", options=("-R", "exec"))
    yield Case("hosts-exec", "200 hosts, `-R exec`, `echo %h`", here, rounds, 60.0, peers=both)
    count, three = 100_000, every[:3]
    header = ("-" * 15, f"{fold(three)} (3)", "-" * 15)
    whole = tuple(sorted((*header, *map(str, range(1, count + 1)))))
    folds = Work(("seq", str(count)), 3, three, tagged=True, prints=whole, dialect="clush", options=("-b",))
    yield Case("hosts-fold", f"3 ssh hosts, `-b`, {count:,} equal lines each", folds, rounds, 200.0, peers=("clush",))


def mpi_cases(hosts: Hosts, quick: bool, group: Path) -> Iterator[Case]:
    """Yield an MPI program of each library that can be compiled, started by mpilaunch and by the library's own launcher."""
    rounds, title = 3 if quick else 15, "MPI_Init + all-reduce + MPI_Finalize"
    # On several hosts MPICH 4.0.2 hangs in MPI_Finalize under any launcher: sometimes with two ranks, mostly with more.
    # More ranks than cores wait for each other by sched_yield under Open MPI; under MPICH they wait for the scheduler's clock.
    for key, library, own, ranks, times in (("openmpi", "Open MPI", "mpirun", 8, 20_000), ("mpich", "MPICH", "Hydra", 2, 50)):
        if compiler := shutil.which(f"mpicc.{key}"):
            program = str(hosts.shared / f"allreduce.{key}")
            subprocess.run([compiler, "-O2", "-o", program, CHECKOUT / "tests" / "programs" / "allreduce.c"], check=True)

            def work(ranks: int, *names: str, program: str = program) -> Work:
                return Work((program, str(ranks)), ranks, names, prints=(f"{ranks} ranks agree",))

            name, two, hangs = f"{title}: {library}", work(ranks, *hosts.names[:2]), key == "mpich"
            yield Case(f"mpi-{key}-local", f"{name}, 8 ranks here", work(8), rounds, 30.0, peers=(own,))
            crowds = {"": (8, "", ()), "-4": (4, "", ()), "-group": (8, ", in a control group", inside(group))}
            for suffix, (crowd, where, before) in crowds.items():
                crowded = Work((program, str(crowd), str(times)), crowd, prints=(f"{crowd} ranks agree",))
                said = f"{times:,} all-reduces: {library}, {crowd} ranks here on {os.cpu_count()} cores{where}"
                yield Case(f"crowd-{key}{suffix}", said, crowded, 3 if quick else 7, 60.0, peers=(own,), before=before)
            there = f"{name}, {ranks} ranks on 2 ssh hosts"
            yield Case(f"mpi-{key}-ssh", there, two, rounds, 30.0, peers=(own,), hangs=hangs)


def slurm_cases(hosts: Hosts, quick: bool, only: str) -> Iterator[Case]:
    """Yield cases in allocations of a Slurm that is there meanwhile, where it is installed; the peers start steps of it too."""
    sizes, printed = ((2, 4) if quick else (4, 32)), 240_000 if quick else 2_400_000
    if not any(key.startswith(only) for key in ("slurm-output", *(f"slurm-{size}" for size in sizes))) or not installed():
        return
    rounds, three = 2 if quick else 5, ("srun", "mpirun", "Hydra")
    with Slurm(hosts) as slurm:
        for size in sizes:
            names = tuple(hosts.names[:size])
            work = Work(("hostname",), size, names, prints=names, dialect="slurm")
            with slurm.allocation(names) as before:
                yield Case(
                    f"slurm-{size}", f"{size} nodes of Slurm, `hostname`", work, rounds, 60.0, peers=three, before=before
                )
        names = tuple(hosts.names[:2])
        prints = Work((str(hosts.shared / "lines"),), 2, names, tagged=True, dialect="slurm")
        title = f"2 nodes of Slurm, each {printed * (len(LINE) + 1) / 1e6:.0f} MB of {len(LINE) + 1}-byte lines, tagged"
        with slurm.allocation(names) as before:
            yield Case("slurm-output", title, prints, 2 if quick else 3, 300.0, printed, ("srun",), before=before)


def torch_cases(quick: bool) -> Iterator[Case]:
    """Yield a PyTorch program, started by mpilaunch and by torchrun, where this Python has torch."""
    if importlib.util.find_spec("torch"):
        program = (sys.executable, str(CHECKOUT / "tests" / "programs" / "torch_allreduce.py"))
        work = Work(program, 2, prints=("2 ranks agree",))
        title = "PyTorch's init_process_group + all-reduce, 2 ranks here"
        yield Case("torch-local", title, work, 2 if quick else 7, 60.0, peers=("torchrun",))
