"""Options of Hydra, MPICH's mpiexec (3.4 to 5, mpiexec/options.c), that are not the same as ours.

Pure. Options of the same name and meaning, such as -n, -ppn and -f, are in the table of `cli.options`. Intel MPI's mpiexec is
derived from Hydra: both have the rows of `SHARED`.
"""

from __future__ import annotations

import shlex
from functools import partial

from mpilaunch.cli.dialects.rows import (
    MPI,
    Dialect,
    InvalidArgument,
    Translation,
    acts,
    fill_pattern,
    for_each,
    ignored,
    needless,
    refused,
)

# Functions of rows


def only_these(names: str) -> Translation:
    """-envlist a,b: forward only these variables."""
    return Translation(("--forward", "none", *for_each("--export", names)))


def gpus_per_proc(number: str) -> Translation:
    """-gpus-per-proc N or AUTO."""
    return Translation() if number.upper() == "AUTO" else Translation(("--gpus-per-rank", number))


def checkpoint_library(name: str) -> Translation:
    """-ckpointlib blcr: not supported, because current kernels cannot load BLCR."""
    note = (
        f"-ckpointlib {name} has no effect: BLCR had its last release in 2013, and no current kernel supports it. "
        "The ranks save their own state on the signal of --checkpoint-signal; see docs/checkpoints.md"
    )
    return Translation(notes=((note, 0),))


_PATTERN_FIELDS = {"r": "{rank}", "h": "{host}", "p": "{node_rank}", "g": "0", "%": "%"}


def prepend_pattern(pattern: str) -> Translation:
    """-prepend-pattern '%r@%h ': a prefix for each line."""
    return Translation(("--tag", fill_pattern(pattern, {**_PATTERN_FIELDS, "t": "{time}"})))


def file_pattern(flag: str, pattern: str) -> Translation:
    """-outfile-pattern out.%r, -errfile-pattern err.%r: write stdout or stderr to files."""
    return Translation((flag, fill_pattern(pattern, _PATTERN_FIELDS)))


_LAUNCHERS = {
    **dict.fromkeys(("ssh", "user", ""), "ssh"),
    **dict.fromkeys(("slurm", "srun"), "slurm"),
    **dict.fromkeys(("sge", "qrsh"), "sge"),
    "rsh": "rsh",
    "fork": "fork",
}
_OF_LSF = ("lsf", "blaunch")


def launcher(name: str) -> Translation:
    """-launcher ssh, rsh, fork, slurm, sge: the agent."""
    if name.lower() in _LAUNCHERS:
        return Translation(agent={"launcher": _LAUNCHERS[name.lower()]})
    of_lsf = name.lower() in _OF_LSF
    hint = "use ssh, or --remote-agent 'blaunch {host} {command}'" if of_lsf else "use ssh, rsh, fork, slurm or sge"
    raise InvalidArgument(f"launcher '{name}' is not supported", hint)


def launcher_exec(path: str) -> Translation:
    """-launcher-exec PATH: the program to use instead of ssh."""
    return Translation(agent={"program": shlex.quote(path), "flags": "-x"})


def resource_manager(name: str) -> Translation:
    """-rmk NAME: the batch system; mpilaunch detects it."""
    if name.lower() not in ("slurm", "lsf", "sge", "pbs", "user"):
        hint = "mpilaunch detects Slurm, PBS, LSF and SGE; otherwise use --host"
        raise InvalidArgument(f"unknown batch system '{name}'", hint)
    return Translation(notes=((f"-rmk {name} has no effect: mpilaunch detects the batch system", 1),))


# Rows

SHARED = (
    # Ranks and nodes
    acts("machine machines machinelist hostlist", "HOSTS", "--host $1"),
    acts("usize", "SIZE", "--universe-size $1"),
    needless("localhost", "NAME", "mpilaunch knows this machine's names; 'local' in --host means it"),
    refused("nameserver", "HOST:PORT", "mpilaunch joins no external server: publish and lookup work within one job"),
    # Binding
    refused("membind", "POLICY", "start the program as: numactl --membind=... ./a"),
    needless("topolib bindlib", "LIBRARY", "mpilaunch reads the nodes' topology from the kernel"),
    # The program
    acts("configfile", "FILE", "--app $1"),
    acts("genv", "NAME VALUE", "--export $1=$2", everywhere=True, joined=True),
    acts("env", "NAME VALUE", "--export $1=$2", joined=True),
    acts("genvlist", "NAMES", only_these, "`--forward none` and `-x` for each name", everywhere=True),
    acts("envlist", "NAMES", only_these, "`--forward none` and `-x` for each name"),
    acts("genvall", "", "--forward all", everywhere=True),
    acts("envall", "", "--forward all"),
    acts("genvnone", "", "--forward none", everywhere=True),
    acts("envnone", "", "--forward none"),
    acts("path", "DIR", "--prepend-env PATH $1"),
    acts("iface", "NAME", "--network $1"),
    # Output
    acts("prepend-rank l", "", "--tag rank"),
    acts("prepend-pattern", "PATTERN", prepend_pattern, "`--tag` with the same fields"),
    acts("outfile-pattern outfile", "PATTERN", partial(file_pattern, "--output-file"), "`--output-file` with the same fields"),
    acts("errfile-pattern errfile", "PATTERN", partial(file_pattern, "--error-file"), "`--error-file` with the same fields"),
    # Looking
    acts("info", "", "--version"),
    ignored("print-all-exitcodes", "", "mpilaunch reports the first failure; --report FILE has every rank's exit code"),
    # Reaching the nodes
    acts("launcher bootstrap rmi", "NAME", launcher, "`--remote-agent`: ssh, slurm, gridengine, local for fork, or a template"),
    acts("launcher-exec bootstrap-exec", "PATH", launcher_exec, "`--remote-agent 'PATH -x {host} {command}'`"),
    acts("rmk", "NAME", resource_manager, "nothing: mpilaunch detects the batch system"),
    acts("enable-x", "", "--remote-agent openssh --ssh-option ForwardX11=yes"),
    needless("disable-x", "", "mpilaunch does not forward X11 by default"),
    needless("demux branch-count branch", "VALUE", "mpilaunch has one event loop, and one connection to each node"),
    needless("pmi-aggregate pmi-noaggregate pmi-connect", "", "PMI connections are private to the user"),
    needless("disable-hostname-propagation enable-hostname-propagation hybrid-hosts", "", "a node is known by its index"),
    refused("pmi_args", "PORT IFACE KEY PID", "a singleton program cannot start a launcher"),
    # Ends
    needless("disable-recovery report-child-jobs-separately enable-auto-cleanup", "", "mpilaunch always behaves so"),
    # Checkpoints
    acts("ckpointlib", "LIBRARY", checkpoint_library, "nothing: current kernels do not support BLCR; ranks save their state"),
    acts("ckpoint-prefix", "DIR", "--checkpoint-prefix $1"),
    acts("ckpoint-interval", "TIME", "--checkpoint-interval $1"),
    refused("ckpoint-num", "N", "a restart uses the newest complete set; delete newer sets to restart from an older one"),
)

_ROWS = (
    # Binding
    acts("binding", "POLICY", "--bind-to $1"),
    acts("g gpus-per-proc", "N", gpus_per_proc, "`--gpus-per-rank N`; AUTO is the default"),
    refused("gpu-subdevs-per-proc", "N", "set ZE_FLAT_DEVICE_HIERARCHY and ZE_AFFINITY_MASK with -x"),
    # The program
    ignored("memory-alloc-kinds", "KINDS", "programs request them with the info key mpi_memory_alloc_kinds"),
    # Output
    refused("output-from", "RANK", "--output-file names a file for each rank"),
    # Looking
    acts("debug", "", "-vv"),
)

DEFAULTS = {
    "dialect": ("hydra", MPI["dialect"][1]),
    "cycle": ("yes", "hydra's default"),
    "forward": ("all", "hydra's default"),
    "stdout": ("pipe", "hydra's default"),
    "default-slots": ("one", "hydra's default"),
    "bind-order": ("cyclic", "hydra's default"),
}
"""Hydra starts more ranks than slots, cycling through its hosts, and forwards its whole environment; Intel MPI as well."""
MARKS = ("-f", "--hosts", "--ppn")

DIALECT = Dialect(
    name="hydra",
    title="MPICH's mpiexec (Hydra)",
    owner="Hydra's",
    rows=(*SHARED, *_ROWS),
    commands=("mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich"),
    marks=MARKS,
    defaults=DEFAULTS,
    variables={"MPIEXEC_TIMEOUT": "timeout"},
)
