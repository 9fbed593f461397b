"""Readers of the hosts and slots that a batch scheduler gave this job. To add one, write its module and add it to `READERS`.

Pure: the environment and the function that reads files are arguments. The first variable that is set decides. An unreadable
variable is an error: the job must not run silently on one node of eight.
"""

from __future__ import annotations

from collections.abc import Mapping

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
