"""Options of PALS, the mpiexec of HPE Cray systems (Polaris, Aurora), that are not the same as ours.

Pure. -n, --ppn and --hostfile are in the table of `cli.options`; the options of the environment are Hydra's. Intel MPI's
mpiexec has the row of -cpu-bind too.
"""

from __future__ import annotations

import re

from mpilaunch.cli.dialects.mpi import hydra
from mpilaunch.cli.dialects.rows import STAGE, Dialect, InvalidArgument, Translation, acts, needless, refused
from mpilaunch.hosts.nodeset import Span, parse_numbers

# Functions of rows

_UNITS = {"none": "none", "thread": "hwthread", "core": "core", "numa": "numa", "socket": "socket", "depth": "rr"}
_LISTS = re.compile(r"\d{1,5}(-\d{1,5})?([,:]\d{1,5}(-\d{1,5})?)*")


def cpu_bind(method: str) -> Translation:
    """-cpu-bind core, depth, list:0-3:4-7 (the kernel's CPU numbers of each local rank) or N (CPUs of each rank)."""
    name = method.removeprefix("verbose,")
    words = ("--report-bindings",) if name != method else ()
    kind, _, lists = name.partition(":")
    if kind == "list" and _LISTS.fullmatch(lists):
        groups = ("+".join(map(str, parse_numbers(Span.of(group, "-cpu-bind")))) for group in lists.split(":"))
        return Translation((*words, "--bind-to", "user:" + ",".join(groups)))
    if re.fullmatch("[1-9][0-9]{0,4}", name):
        return Translation((*words, "--bind-to", "rr", "--cpus-per-rank", name))
    if name not in _UNITS:
        hint = "use " + ", ".join(_UNITS) + ", N, or a list like list:0-3:4-7"
        raise InvalidArgument(f"binding '{method}' is not supported", hint)
    return Translation((*words, "--bind-to", _UNITS[name]))


def pmi(name: str) -> Translation:
    """--pmi pmix, pmi1 or pmi2: the process management interface."""
    if name not in ("pmix", "pmi1", "pmi2", "none"):
        raise InvalidArgument(f"interface '{name}' is not supported", "leave it out; or use pmix, pmi1, pmi2 or none")
    return Translation(("--mpi", name))


# Rows

CPU_BIND = acts(
    "cpu-bind", "METHOD", cpu_bind, "`--bind-to`: core, numa, socket, hwthread for thread, rr for depth, user for list"
)
_ENVIRONMENT = {"genv", "env", "genvlist", "envlist", "genvall", "envall", "genvnone", "envnone", "l"}

_ROWS = (
    acts("depth d", "N", "--cpus-per-rank $1"),
    CPU_BIND,
    refused("mem-bind", "POLICY", "start the program as: numactl --membind=... ./a"),
    acts("pmi", "NAME", pmi, "`--mpi NAME`"),
    needless("line-buffer", "", "mpilaunch never splits lines"),
    needless("no-transfer", "", "mpilaunch starts the program where it is"),
    refused("transfer", "", STAGE),
    needless("no-vni", "", "mpilaunch asks for no network identifiers"),
    refused("rlimit rlimits", "LIMITS", "start the program as: sh -c 'ulimit -c unlimited; exec ./a'"),
)

DIALECT = Dialect(
    name="pals",
    title="HPE's mpiexec (PALS)",
    owner="PALS'",
    rows=(*(row for row in hydra.SHARED if _ENVIRONMENT & set(row.names)), *_ROWS),
    marks=("--hosts", "--ppn"),
    defaults={**hydra.DEFAULTS, "profile": ("pals", "PALS' variables")},
)
