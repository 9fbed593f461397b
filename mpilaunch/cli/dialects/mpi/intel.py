"""Options of Intel MPI's mpiexec (2021) that are not the same as ours.

Pure. It is derived from Hydra, and has most of Hydra's options. -n and -ppn are in the table of `cli.options`.
"""

from __future__ import annotations

from mpilaunch.cli.dialects.mpi import hydra, pals
from mpilaunch.cli.dialects.rows import DEBUGGER, Dialect, Translation, acts, for_each, ignored, needless, refused

# Functions of rows


def none_of_these(names: str) -> Translation:
    """-envexcl a,b: remove these variables from the ranks."""
    return Translation(tuple(for_each("--unset-env", names)))


def launcher_arguments(words: str) -> Translation:
    """-bootstrap-exec-args WORDS: arguments before the host."""
    return Translation(agent={"arguments": words, "flags": "-x"})


# Rows

_ROWS = (
    # Ranks and nodes
    acts("perhost grr", "N", "--npernode $1"),
    acts("rr", "", "--map-by node"),
    acts("hosts-group", "GROUPS", "--host $1"),
    # Binding
    refused("binding", "POLICY", "--bind-to core, --bind-to numa or --map-by slot:PE=N"),
    pals.CPU_BIND,
    # The program
    acts("genvexcl", "NAMES", none_of_these, "`--unset-env` for each name", everywhere=True),
    acts("envexcl", "NAMES", none_of_these, "`--unset-env` for each name"),
    acts("s", "RANK", "--stdin $1"),
    acts("tune", "FILE", "--export I_MPI_TUNING_BIN=$1"),
    refused("umask", "MASK", "start the program as: sh -c 'umask MASK; exec ./a'"),
    ignored("prot", "", "the library prints it with -genv I_MPI_DEBUG 4"),
    # Output
    acts("prepend-timestamp", "", "--timestamp-output"),
    needless("ordered-output", "", "mpilaunch never splits lines"),
    # Looking
    acts("print-rank-map", "", "--display-map"),
    refused("tv", "", DEBUGGER),
    refused("gdb gdba gdb-ia tva", "", DEBUGGER),
    refused("gtool gtoolfile gdb-args", "TOOLS", "start the tool as the program: tool ./a"),
    refused("aps mps check_mpi t", "", "start the tool as the program, or set its LD_PRELOAD with -x"),
    refused("trace trace-collectives trace-imbalance trace-pt2pt", "", "set the tool's LD_PRELOAD with -x"),
    needless("silent-abort", "", "mpilaunch reports the first failure once"),
    needless("noconf", "", "mpilaunch reads no configuration files of Intel MPI"),
    # Reaching the nodes
    acts("r", "NAME", hydra.launcher, "as -bootstrap; of the mpirun before 2019"),
    acts("bootstrap-exec-args", "WORDS", launcher_arguments, "`--remote-agent` with these arguments before the host"),
    needless("tmpdir", "DIR", "mpilaunch writes nothing to a node's disk"),
)

DIALECT = Dialect(
    name="intel",
    title="Intel MPI's mpiexec",
    owner="Intel MPI's",
    rows=(*hydra.SHARED, *_ROWS),
    marks=hydra.MARKS,
    defaults=hydra.DEFAULTS,
    variables={"I_MPI_HYDRA_HOSTS_GROUP": "host"},
)
