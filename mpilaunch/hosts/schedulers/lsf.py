"""LSF: a file that lists a host once per slot, or one of two variables. Source: bsub(1), "LSB_MCPU_HOSTS"."""

from __future__ import annotations

from collections.abc import Mapping

from mpilaunch.errors import UsageError
from mpilaunch.hosts.hostfile import HostEntry
from mpilaunch.hosts.schedulers.reader import INSTEAD, Reader, ReadText, name_per_slot, number


def _pairs(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    """Read `hostA 4 hostB 4`."""
    words = environ[variable].split()
    if len(words) % 2 or not words:
        message = f"{variable}='{environ[variable]}' is not pairs of host and slots"
        raise UsageError("scheduler-variable", message, hint=INSTEAD)
    return [
        HostEntry(name, slots=number(slots, variable), origin=variable)
        for name, slots in zip(words[::2], words[1::2], strict=True)
    ]


def _names(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    """Read a list with a host once per slot."""
    return [HostEntry(name, origin=variable) for name in environ[variable].split()]


READERS = (
    Reader("LSB_DJOB_HOSTFILE", "LSF", "LSB_JOBID", name_per_slot),
    Reader("LSB_MCPU_HOSTS", "LSF", "LSB_JOBID", _pairs),
    Reader("LSB_HOSTS", "LSF", "LSB_JOBID", _names),
)
