"""Options of Intel MPI's mpiexec (2021) that are not spelled as ours.

Pure. It is made from Hydra, and has most of Hydra's options.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpilaunch.cli.dialects import hydra
from mpilaunch.cli.dialects.rows import Dialect, ReadFile, Translation, Wrong, acts, for_each, ignored, needless, refused

# Functions of rows


def none_of_these(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-envexcl a,b: the ranks do not have these variables."""
    return Translation(tuple(for_each("--unset-env", values[0])))


def stdin(values: Sequence[str], read_file: ReadFile) -> Translation:
    """Intel's -s all, -s 3: who gets standard input."""
    if values[0] != "all" and not values[0].isdecimal():
        raise Wrong(f"'{values[0]}' is neither all nor one rank", "standard input goes to one rank, to all or to none: --stdin")
    return Translation(("--stdin", values[0]))


def launcher_arguments(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-bootstrap-exec-args WORDS: what stands before the host."""
    return Translation(agent={"arguments": values[0], "flags": "-x"})


# Rows

_DEBUGGER = "start the debugger as the program: xterm -e gdb --args ./a, or attach it to a running rank"

_ROWS = (
    # Ranks and nodes
    acts("perhost grr", "N", "--npernode $1"),
    acts("rr", "", "--map-by node"),
    acts("hosts-group", "GROUPS", "--host $1"),
    # Binding
    refused("binding cpu-bind", "POLICY", "--bind-to core, --bind-to numa or --map-by slot:PE=N"),
    # The program
    acts("genvexcl", "NAMES", none_of_these, "`--unset-env` for each name", everywhere=True),
    acts("envexcl", "NAMES", none_of_these, "`--unset-env` for each name"),
    acts("s", "WHO", stdin, "`--stdin all` or one rank"),
    acts("tune", "FILE", "--export I_MPI_TUNING_BIN=$1"),
    refused("umask", "MASK", "start the program as: sh -c 'umask MASK; exec ./a'"),
    ignored("prot", "", "the library tells it with -genv I_MPI_DEBUG 4"),
    # Output
    acts("prepend-timestamp", "", "--timestamp-output"),
    needless("ordered-output", "", "lines stay whole"),
    # Looking
    acts("print-rank-map", "", "--display-map"),
    refused("tv", "", _DEBUGGER),
    refused("gdb gdba gdb-ia tva", "", _DEBUGGER),
    refused("gtool gtoolfile gdb-args", "TOOLS", "start the tool as the program: tool ./a"),
    refused("aps mps check_mpi t", "", "start the tool as the program, or set its LD_PRELOAD with -x"),
    refused("trace trace-collectives trace-imbalance trace-pt2pt", "", "set the tool's LD_PRELOAD with -x"),
    needless("silent-abort", "", "the first failure is told once"),
    needless("noconf", "", "no configuration of Intel MPI is read"),
    # Reaching the nodes
    acts("bootstrap-exec-args", "WORDS", launcher_arguments, "the same, with these words before the host"),
    needless("tmpdir", "DIR", "nothing is written to a node's disk"),
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
