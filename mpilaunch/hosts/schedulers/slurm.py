"""Slurm: SLURM_JOB_NODELIST, and the tasks or CPUs of each node. Source: sbatch(1), "OUTPUT ENVIRONMENT VARIABLES".

A heterogeneous job has SLURM_HET_SIZE parts, each with variables of its own, `..._HET_GROUP_0` and so on; what has no such
ending is of the first part, or missing. In a step, the tasks per node are those of the step, while the list has the nodes of
the job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mpilaunch.errors import UsageError
from mpilaunch.hosts.hostfile import HostEntry, parse_host_list
from mpilaunch.hosts.nodeset import Span
from mpilaunch.hosts.schedulers.reader import INSTEAD, Reader, ReadText, number
from mpilaunch.text import is_whole_number, plural

_REPEATED = r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?"


_MOST_PARTS = 128
"""Slurm's MAX_HET_JOB_COMPS."""


def parts(environ: Mapping[str, str]) -> list[list[HostEntry]]:
    """Return the hosts of each part of a heterogeneous job; none of any other job; raises UsageError."""
    text = environ.get("SLURM_HET_SIZE")
    if not text:
        return []
    count = number(text, "SLURM_HET_SIZE")
    if not 0 < count <= _MOST_PARTS:
        message = f"SLURM_HET_SIZE is {count}, which is not a number of parts from 1 to {_MOST_PARTS}"
        raise UsageError("scheduler-variable", message, hint=INSTEAD)
    return [_hosts(environ, f"SLURM_JOB_NODELIST_HET_GROUP_{part}", f"_HET_GROUP_{part}") for part in range(count)]


def in_step(environ: Mapping[str, str]) -> bool:
    """Return whether this is a task of a step; the numbers of batch scripts and of shells of salloc have ten digits."""
    return is_whole_number(environ.get("SLURM_STEP_ID", ""), 9)


def _of_parts(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    return [host for hosts in parts(environ) for host in hosts]


def _of_job(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    return _hosts(environ, variable, "")


def _of_none(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    """Refuse a job of several nodes that no variable names; that of a single one is taken for this machine."""
    if environ[variable] == "1":
        return []
    message = f"a job of Slurm has {environ[variable]} nodes ({variable}), but SLURM_JOB_NODELIST does not name them"
    raise UsageError("scheduler-variable", message, hint=INSTEAD)


def _hosts(environ: Mapping[str, str], variable: str, ending: str) -> list[HostEntry]:
    """Read the node list, and the tasks per node; without these, slots follow from the CPUs per node and per task."""
    if not environ.get(variable):
        raise UsageError("scheduler-variable", f"{variable} is missing, which a part of this job of Slurm needs", hint=INSTEAD)
    hosts = parse_host_list(environ[variable], variable)
    of_tasks, of_cpus, of_each = (f"SLURM_{name}{ending}" for name in ("TASKS_PER_NODE", "JOB_CPUS_PER_NODE", "CPUS_PER_TASK"))
    if (tasks := environ.get(of_tasks)) and not in_step(environ):
        slots = counts(tasks, of_tasks, len(hosts), variable)
    elif cpus := environ.get(of_cpus):
        per_task = max(1, number(environ.get(of_each) or "1", of_each))
        of_nodes = counts(cpus, of_cpus, len(hosts), variable)
        slots = [max(1, count // per_task) for count in of_nodes]
    else:
        return hosts
    return [host._replace(slots=count) for host, count in zip(hosts, slots, strict=True)]


def counts(text: str, variable: str, nodes: int, nodes_variable: str) -> list[int]:
    """Return Slurm's `4(x2),3` as 4, 4, 3."""
    numbers: list[int] = []
    for item in Span.of(text, variable).split():
        match = re.fullmatch(_REPEATED, item.text)
        if match is None:
            raise item.error("scheduler-variable", f"'{item.text}' is not a count", "Slurm writes 4(x2),3 for 4, 4 and 3")
        numbers += [int(match[1])] * min(int(match[2] or 1), nodes + 1)
    if len(numbers) != nodes:
        message = f"{variable}='{text}' does not give one count for each of {nodes_variable} ({plural(nodes, 'node')})"
        raise UsageError("scheduler-variable", message, hint=INSTEAD)
    return numbers


READERS = tuple(
    Reader(variable, "Slurm", "SLURM_JOB_ID", read, agent="slurm", command="srun", task_cpus=cpus, in_step=in_step)
    for variable, read, cpus in (
        ("SLURM_HET_SIZE", _of_parts, ""),  # each part has its own
        ("SLURM_JOB_NODELIST", _of_job, "SLURM_CPUS_PER_TASK"),
        ("SLURM_NODELIST", _of_job, "SLURM_CPUS_PER_TASK"),
        ("SLURM_JOB_NUM_NODES", _of_none, ""),
    )
)
