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

READERS = tuple(reader for module in (slurm, pbs, lsf, grid_engine, flux) for reader in module.READERS)


def discover(environ: Mapping[str, str], read_text: ReadText) -> tuple[list[HostEntry], str] | None:
    """Return the hosts of the surrounding batch job and its name ("Slurm job 42"), None outside of one; raises UsageError."""
    for reader in READERS:
        if environ.get(reader.variable):
            entries = reader.read(environ, reader.variable, read_text)
            job = environ.get(reader.job_variable)
            return (entries, f"{reader.scheduler} job {job}" if job else reader.scheduler) if entries else None
    return None


class BatchAgent(NamedTuple):
    """The agent by which a batch system reaches the hosts of a job from within it.

    Attributes:
        installed: whether its command is here.
    """

    name: str
    hosts: frozenset[str]
    installed: bool


def find_agent(environ: Mapping[str, str], read_text: ReadText, is_program: Callable[[str], bool]) -> BatchAgent | None:
    """Return the agent of the surrounding batch job, None outside of one and where it has none."""
    reader = next((reader for reader in READERS if environ.get(reader.variable) and environ.get(reader.job_variable)), None)
    if reader is None or not reader.agent:
        return None
    try:
        hosts = frozenset(entry.name for entry in reader.read(environ, reader.variable, read_text))
    except UsageError:
        return None  # it is an error where these hosts are used, not where others are named
    return BatchAgent(reader.agent, hosts, is_program(reader.command))
