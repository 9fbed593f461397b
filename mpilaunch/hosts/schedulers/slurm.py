"""Slurm: SLURM_JOB_NODELIST, and the tasks or CPUs of each node. Source: sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mpilaunch.errors import UsageError
from mpilaunch.hosts.hostfile import HostEntry, parse_host_list
from mpilaunch.hosts.nodeset import Span
from mpilaunch.hosts.schedulers.reader import INSTEAD, Reader, ReadText, number
from mpilaunch.text import plural

_REPEATED = r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?"


def _read(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    """Read the node list, and the tasks per node; without these, slots follow from the CPUs per node and per task."""
    hosts = parse_host_list(environ[variable], variable)
    if tasks := environ.get("SLURM_TASKS_PER_NODE"):
        slots = counts(tasks, "SLURM_TASKS_PER_NODE", len(hosts), variable)
    elif cpus := environ.get("SLURM_JOB_CPUS_PER_NODE"):
        per_task = max(1, number(environ.get("SLURM_CPUS_PER_TASK") or "1", "SLURM_CPUS_PER_TASK"))
        of_nodes = counts(cpus, "SLURM_JOB_CPUS_PER_NODE", len(hosts), variable)
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
    Reader(variable, "Slurm", "SLURM_JOB_ID", _read, agent="slurm", command="srun")
    for variable in ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
)
