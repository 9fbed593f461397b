"""The hosts and slots that a batch scheduler gave this job, read from its variables and the files they name.

Pure: the environment and the reading of files are arguments. Each scheduler is one module with its `READERS`; to add one, write
its module and add it to the table. The first variable that is set decides. A variable that cannot be read is an error that
names it: a job that silently ran on one node of eight would be worse than one that does not run.
"""

from __future__ import annotations

from collections.abc import Mapping

from mpilaunch.hosts.hostfile import HostEntry
from mpilaunch.hosts.schedulers import flux, grid_engine, lsf, pbs, slurm
from mpilaunch.hosts.schedulers.reader import ReadText

READERS = tuple(reader for module in (slurm, pbs, lsf, grid_engine, flux) for reader in module.READERS)


def discover(environ: Mapping[str, str], read_text: ReadText) -> tuple[list[HostEntry], str] | None:
    """Return the hosts of the surrounding job and its name ("Slurm job 42"), None outside of one; raises UsageError.

    Args:
        environ: the head's environment.
        read_text: returns the text of a file, or raises OSError.
    """
    for reader in READERS:
        if environ.get(reader.variable):
            entries = reader.read(environ, reader.variable, read_text)
            job = environ.get(reader.job_variable)
            return (entries, f"{reader.scheduler} job {job}" if job else reader.scheduler) if entries else None
    return None
