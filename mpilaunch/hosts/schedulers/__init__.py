"""Readers of the hosts and slots that a batch scheduler gave this job. To add one, write its module and add it to `READERS`.

Pure: the environment and the function that reads files are arguments. The first variable that is set decides. An unreadable
variable is an error: the job must not run silently on one node of eight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.hosts.hostfile import HostEntry
from mpilaunch.hosts.schedulers import flux, grid_engine, lsf, pbs, slurm
from mpilaunch.hosts.schedulers.reader import ReadText
from mpilaunch.text import is_whole_number

READERS = tuple(reader for module in (slurm, pbs, lsf, grid_engine, flux) for reader in module.READERS)


def discover(environ: Mapping[str, str], read_text: ReadText) -> tuple[list[HostEntry], str] | None:
    """Return the hosts of the surrounding batch job and its name ("Slurm job 42"), None outside of one; raises UsageError."""
    for reader in READERS:
        if environ.get(reader.variable):
            entries = reader.read(environ, reader.variable, read_text)
            job = environ.get(reader.job_variable)
            return (entries, f"{reader.scheduler} job {job}" if job else reader.scheduler) if entries else None
    return None


class BatchJob(NamedTuple):
    """The surrounding batch job, where the batch system has an agent that reaches its hosts from within it.

    Attributes:
        installed: whether the agent's command is here.
        cpus_per_task: what the user asked for, None without.
        in_step: this process is a task of a step, which may have less of its node than the job.
    """

    agent: str
    hosts: frozenset[str]
    installed: bool
    cpus_per_task: int | None = None
    in_step: bool = False


def find_job(environ: Mapping[str, str], read_text: ReadText, is_program: Callable[[str], bool]) -> BatchJob | None:
    """Return the surrounding batch job, None outside of one and where its batch system has no agent."""
    reader = next((reader for reader in READERS if environ.get(reader.variable) and environ.get(reader.job_variable)), None)
    if reader is None or not reader.agent:
        return None
    try:
        hosts = frozenset(entry.name for entry in reader.read(environ, reader.variable, read_text))
    except UsageError:
        return None  # it is an error where these hosts are used, not where others are named
    cpus = environ.get(reader.task_cpus, "")
    cpus_per_task = int(cpus) if is_whole_number(cpus, 6) else None
    return BatchJob(reader.agent, hosts, is_program(reader.command), cpus_per_task, reader.in_step(environ))
