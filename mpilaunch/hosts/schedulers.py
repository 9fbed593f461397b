"""Read the hosts and slots that a batch scheduler gave this job, from its variables and the files they name.

Pure: the environment and the reading of files are arguments. A scheduler is one row of `_READERS`; the first whose variable
is set wins. What a scheduler says and we cannot read is an error that names the variable: a job that silently runs on one
node of eight is worse than one that does not run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from mpilaunch.errors import UsageError
from mpilaunch.hosts.hostfile import HostEntry, parse_host_list, parse_hostfile
from mpilaunch.hosts.nodeset import Span
from mpilaunch.text import is_whole_number

ReadText = Callable[[str], str]


def discover(environ: Mapping[str, str], read_text: ReadText) -> tuple[list[HostEntry], str] | None:
    """Return the hosts of the surrounding job and its name ("Slurm job 42"), None outside of one; raises UsageError.

    Args:
        environ: the head's environment.
        read_text: returns the text of a file, or raises OSError.
    """
    for variable, scheduler, job_variable, read in _READERS:
        if environ.get(variable):
            entries = read(environ, variable, read_text)
            job = environ.get(job_variable)
            return (entries, f"{scheduler} job {job}" if job else scheduler) if entries else None
    return None


def parse_pe_hostfile(text: str, source: str) -> list[HostEntry]:
    """Return the entries of Grid Engine's PE_HOSTFILE: `host slots queue range` on each line."""
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        if len(fields) < 2:
            continue
        if not is_whole_number(fields[1], 9):
            start = line.index(fields[1], line.index(fields[0]) + len(fields[0]))
            spot = Span.of(line, source, number).part(start, start + len(fields[1]))
            raise spot.error("scheduler-variable", f"'{fields[1]}' is not a number of slots", "a line is 'host slots ...'")
        entries.append(HostEntry(fields[0], slots=int(fields[1]), origin=f"{source}:{number}"))
    return entries


_REPEATED = r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?"


def _slurm(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    """Read the node list, and the tasks of each node; without these as many slots as tasks have room on its CPUs."""
    hosts = parse_host_list(environ[variable], variable)
    if tasks := environ.get("SLURM_TASKS_PER_NODE"):
        slots = _counts(tasks, "SLURM_TASKS_PER_NODE", len(hosts), variable)
    elif cpus := environ.get("SLURM_JOB_CPUS_PER_NODE"):
        per_task = max(1, _number(environ.get("SLURM_CPUS_PER_TASK") or "1", "SLURM_CPUS_PER_TASK"))
        counts = _counts(cpus, "SLURM_JOB_CPUS_PER_NODE", len(hosts), variable)
        slots = [max(1, count // per_task) for count in counts]
    else:
        return hosts
    return [host._replace(slots=count) for host, count in zip(hosts, slots, strict=True)]


def _counts(text: str, variable: str, nodes: int, nodes_variable: str) -> list[int]:
    """Return Slurm's `4(x2),3` as 4, 4, 3."""
    counts: list[int] = []
    for item in Span.of(text, variable).split():
        match = re.fullmatch(_REPEATED, item.text)
        if match is None:
            raise item.error("scheduler-variable", f"'{item.text}' is not a count", "Slurm writes 4(x2),3 for 4, 4 and 3")
        counts += [int(match[1])] * min(int(match[2] or 1), nodes + 1)
    if len(counts) != nodes:
        raise UsageError(
            "scheduler-variable",
            f"{variable}='{text}' does not give one count for each of the {nodes} nodes of {nodes_variable}",
            hint=_INSTEAD,
        )
    return counts


def _name_per_slot(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    """Read a file that names a host once for each of its slots."""
    path = environ[variable]
    return parse_hostfile(_read(path, variable, read_text), f"{variable}={path}")


def _grid_engine(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    path = environ[variable]
    entries = parse_pe_hostfile(_read(path, variable, read_text), f"{variable}={path}")
    if not entries:
        raise UsageError("scheduler-variable", f"{variable}='{path}' names no hosts", hint=_INSTEAD)
    return entries


def _lsf_pairs(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    """Read `hostA 4 hostB 4`."""
    words = environ[variable].split()
    if len(words) % 2 or not words:
        raise UsageError(
            "scheduler-variable", f"{variable}='{environ[variable]}' is not pairs of host and slots", hint=_INSTEAD
        )
    return [
        HostEntry(name, slots=_number(slots, variable), origin=variable)
        for name, slots in zip(words[::2], words[1::2], strict=True)
    ]


def _lsf_names(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    """Read a host name for each slot."""
    return [HostEntry(name, origin=variable) for name in environ[variable].split()]


def _flux(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    """Flux gives no host list in any variable: all that can be known is that a job of one node runs here."""
    if environ.get("FLUX_JOB_NNODES") == "1":
        return []
    raise UsageError(
        "scheduler-flux",
        "this runs inside a Flux instance, whose hosts are in no variable",
        hint='pass --host "$(flux getattr hostlist)", or --host local for this node alone',
    )


def _number(text: str, variable: str) -> int:
    if not is_whole_number(text, 9):
        raise UsageError("scheduler-variable", f"{variable} says '{text}' where a number belongs", hint=_INSTEAD)
    return int(text)


def _read(path: str, variable: str, read_text: ReadText) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError("scheduler-variable", f"{variable}='{path}' cannot be read: {reason}", hint=_INSTEAD) from error


_INSTEAD = "name the hosts with --host or --hostfile instead"

_READERS: tuple[tuple[str, str, str, Callable[[Mapping[str, str], str, ReadText], list[HostEntry]]], ...] = (
    # variable that holds the hosts, scheduler, variable of the job's name, reader
    ("SLURM_JOB_NODELIST", "Slurm", "SLURM_JOB_ID", _slurm),
    ("SLURM_NODELIST", "Slurm", "SLURM_JOB_ID", _slurm),
    ("PBS_NODEFILE", "PBS", "PBS_JOBID", _name_per_slot),
    ("LSB_DJOB_HOSTFILE", "LSF", "LSB_JOBID", _name_per_slot),
    ("LSB_MCPU_HOSTS", "LSF", "LSB_JOBID", _lsf_pairs),
    ("LSB_HOSTS", "LSF", "LSB_JOBID", _lsf_names),
    ("PE_HOSTFILE", "Grid Engine", "JOB_ID", _grid_engine),
    ("COBALT_NODEFILE", "Cobalt", "COBALT_JOBID", _name_per_slot),
    ("FLUX_URI", "Flux", "FLUX_JOB_ID", _flux),
)
