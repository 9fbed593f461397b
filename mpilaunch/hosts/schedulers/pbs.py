"""PBS and Cobalt: a file that lists a host once per slot. Source: qsub(1B), "PBS_NODEFILE"."""

from __future__ import annotations

from mpilaunch.hosts.schedulers.reader import Reader, name_per_slot

READERS = (
    Reader("PBS_NODEFILE", "PBS", "PBS_JOBID", name_per_slot),
    Reader("COBALT_NODEFILE", "Cobalt", "COBALT_JOBID", name_per_slot),
)
