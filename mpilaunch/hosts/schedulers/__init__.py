"""Readers of the hosts and slots that a batch scheduler gave this job. To add one, write its module and add it to `READERS`.

Pure: the environment and the function that reads files are arguments. The first variable that is set decides. An unreadable
variable is an error: the job must not run silently on one node of eight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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


def agents(environ: Mapping[str, str], read_text: ReadText, is_program: Callable[[str], bool]) -> dict[str, str]:
    """Return the hosts of the surrounding batch job, with the agent that reaches them from within it, where it has one."""
    for reader in READERS:
        if environ.get(reader.variable) and environ.get(reader.job_variable):
            if not (reader.agent and is_program(reader.command)):
                break
            try:
                return {entry.name: reader.agent for entry in reader.read(environ, reader.variable, read_text)}
            except UsageError:
                break  # an error where these hosts are used, not where others are named
    return {}
