"""Options of Hydra, MPICH's mpiexec (3.4 to 5, mpiexec/options.c), that are not spelled as ours.

Pure. Intel MPI's mpiexec is made from Hydra: `SHARED` are the rows that both have.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from mpilaunch.cli.dialects.rows import (
    Dialect,
    ReadFile,
    Translation,
    Wrong,
    acts,
    fill_pattern,
    for_each,
    ignored,
    needless,
    refused,
)

# Functions of rows


def only_these(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-envlist a,b: forward these variables and no others."""
    return Translation(("--forward", "none", *for_each("--export", values[0])))


def universe_size(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-usize N, SYSTEM or INFINITE."""
    text = values[0].upper()
    if text == "INFINITE":
        raise Wrong("there is no universe without end", "say a number: --universe-size N")
    return Translation() if text == "SYSTEM" else Translation(("--universe-size", values[0]))


def gpus_per_proc(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-gpus-per-proc N or AUTO."""
    return Translation() if values[0].upper() == "AUTO" else Translation(("--gpus-per-rank", values[0]))


def checkpoint_library(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-ckpointlib blcr: nothing can save a process from outside any more."""
    note = (
        f"-ckpointlib {values[0]}: BLCR is dead (its last release is of 2013, and no kernel of today loads it). The ranks save "
        "their own state instead, when --checkpoint-signal asks them; see docs/checkpoints.md"
    )
    return Translation(notes=((note, 0),))


_PATTERN_FIELDS = {"r": "{rank}", "h": "{host}", "p": "{node_rank}", "g": "0", "%": "%"}


def prepend_pattern(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-prepend-pattern '%r@%h ': put it before each line."""
    return Translation(("--tag", fill_pattern(values[0], {**_PATTERN_FIELDS, "t": "{time}"})))


def outfile(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-outfile-pattern out.%r: stdout goes to files."""
    return Translation(("--output-file", fill_pattern(values[0], _PATTERN_FIELDS)))


def errfile(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-errfile-pattern err.%r: stderr goes to files."""
    return Translation(("--error-file", fill_pattern(values[0], _PATTERN_FIELDS)))


_BY_SSH = ("ssh", "user", "")
_SCHEDULERS = {
    "slurm": "'srun --nodes=1 --ntasks=1 --nodelist={host} --overlap sh -c {command}'",
    "srun": "'srun --nodes=1 --ntasks=1 --nodelist={host} --overlap sh -c {command}'",
    "lsf": "'blaunch {host} {command}'",
    "blaunch": "'blaunch {host} {command}'",
    "sge": "'qrsh -inherit {host} {command}'",
    "qrsh": "'qrsh -inherit {host} {command}'",
}


def launcher(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-launcher ssh, rsh, fork: how nodes are reached."""
    name = values[0].lower()
    if name in _BY_SSH:
        return Translation(agent={"launcher": "ssh"})
    if name in ("rsh", "fork"):
        return Translation(agent={"launcher": name})
    template = _SCHEDULERS.get(name)
    hint = f"ssh does without it; the batch system's own is --remote-agent {template}" if template else "use ssh, rsh or fork"
    raise Wrong(f"there is no launcher '{values[0]}' here", hint)


def launcher_exec(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-launcher-exec PATH: the program in ssh's place."""
    return Translation(agent={"program": shlex.quote(values[0]), "flags": "-x"})


def with_x(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-enable-x: let the ranks open windows here."""
    return Translation(("--remote-agent", "openssh", "--ssh-option", "ForwardX11=yes"))


def resource_manager(values: Sequence[str], read_file: ReadFile) -> Translation:
    """-rmk NAME: where hosts come from when none are named."""
    if values[0].lower() not in ("slurm", "lsf", "sge", "pbs", "user"):
        raise Wrong(f"'{values[0]}' is not known", "Slurm, PBS, LSF and Grid Engine are found by themselves; else name --hosts")
    return Translation(notes=((f"-rmk {values[0]} changes nothing: the batch system is found by itself", 1),))


def agent_template(parts: Mapping[str, str]) -> str | None:
    """Return the agent that the parts name together, None for the usual one.

    Args:
        parts: `launcher` ("ssh", "rsh" or "fork"), `program` in its place, `arguments` behind it, `flags` that its dialect puts
            before the host.
    """
    name = parts.get("launcher", "ssh")
    if name == "fork":
        return "local"
    program, arguments = parts.get("program", name), parts.get("arguments", "")
    if program == "ssh" and not arguments.strip():
        return None
    words = " ".join(word for word in (program, arguments, parts.get("flags", "") if name == "ssh" else "") if word)
    return words.replace("{", "{{").replace("}", "}}") + " {host} {command}"


# Rows

SHARED = (
    # Ranks and nodes
    acts("machine machines machinelist hostlist", "HOSTS", "--host $1"),
    acts("usize", "SIZE", universe_size, "`--universe-size`; SYSTEM is the number of slots, as without it"),
    needless("localhost", "NAME", "this machine is known by all of its names; 'local' in --host is always this one"),
    refused("nameserver", "HOST:PORT", "there is no server of others to join: publish and lookup work inside one job"),
    # Binding
    refused("membind", "POLICY", "start the program as: numactl --membind=... ./a"),
    needless("topolib bindlib", "LIBRARY", "the nodes' topology is read from the kernel"),
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
    ignored("iface", "NAME", "mpilaunch opens no port; libraries have variables: -x UCX_NET_DEVICES, FI_TCP_IFACE"),
    # Output
    acts("prepend-rank l", "", "--tag rank"),
    acts("prepend-pattern", "PATTERN", prepend_pattern, "`--tag` with the same fields"),
    acts("outfile-pattern outfile", "PATTERN", outfile, "`--output-file` with the same fields"),
    acts("errfile-pattern errfile", "PATTERN", errfile, "`--error-file` with the same fields"),
    # Looking
    acts("info", "", "--version"),
    refused("profile", "", "--report FILE has the times of a launch"),
    ignored("print-all-exitcodes", "", "the first failure is told by itself; --report FILE has every rank's exit code"),
    # Reaching the nodes
    acts("launcher bootstrap rmi", "NAME", launcher, "`--remote-agent`: ssh, local for fork, a template for rsh"),
    acts("launcher-exec bootstrap-exec", "PATH", launcher_exec, "`--remote-agent 'PATH -x {host} {command}'`"),
    acts("rmk", "NAME", resource_manager, "nothing: the batch system is found by itself"),
    acts("enable-x", "", with_x, "`--remote-agent openssh --ssh-option ForwardX11=yes`"),
    needless("disable-x", "", "X is not forwarded"),
    needless("demux branch-count branch", "VALUE", "one loop and one connection for each node"),
    needless("pmi-aggregate pmi-noaggregate pmi-connect", "", "the ranks' connections are private to the user"),
    needless(
        "disable-hostname-propagation enable-hostname-propagation hybrid-hosts",
        "",
        "a node is known by its place, not by its name",
    ),
    refused("pmi_args", "PORT IFACE KEY PID", "a program that runs alone cannot ask for a launcher afterwards"),
    # Ends
    needless("disable-recovery report-child-jobs-separately enable-auto-cleanup", "", "it is so anyway"),
    # Checkpoints
    acts("ckpointlib", "LIBRARY", checkpoint_library, "nothing: BLCR is dead; ranks save their own state"),
    acts("ckpoint-prefix", "DIR", "--checkpoint-prefix $1"),
    acts("ckpoint-interval", "TIME", "--checkpoint-interval $1"),
    refused("ckpoint-num", "N", "a restart takes the newest whole set; delete the newer ones to go further back"),
)

_ROWS = (
    # Binding
    acts("binding", "POLICY", "--bind-to $1"),
    acts("g gpus-per-proc", "N", gpus_per_proc, "`--gpus-per-rank N`; AUTO is as without it"),
    refused("gpu-subdevs-per-proc", "N", "say ZE_FLAT_DEVICE_HIERARCHY and ZE_AFFINITY_MASK with -x"),
    # The program
    ignored("memory-alloc-kinds", "KINDS", "a program asks for them by the info key mpi_memory_alloc_kinds"),
    # Output
    refused("output-from", "RANK", "--output-file names a file for each rank"),
    # Looking
    acts("debug", "", "-vv"),
)

DEFAULTS = {"oversubscribe": ("yes", "hydra's habit")}
"""Hydra places as many ranks as are asked for, going round its hosts."""
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
