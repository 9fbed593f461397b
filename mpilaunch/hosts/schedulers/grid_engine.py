"""Grid Engine: PE_HOSTFILE, `host slots queue range` on each line. Source: sge_pe(5)."""

from __future__ import annotations

from collections.abc import Mapping

from mpilaunch.errors import UsageError
from mpilaunch.hosts.hostfile import HostEntry
from mpilaunch.hosts.nodeset import Span
from mpilaunch.hosts.schedulers.reader import INSTEAD, Reader, ReadText, file_text
from mpilaunch.text import is_whole_number


def parse_pe_hostfile(text: str, source: str) -> list[HostEntry]:
    """Return the entries of a PE_HOSTFILE; raises UsageError."""
    entries = []
    for line_number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        if len(fields) < 2:
            continue
        if not is_whole_number(fields[1], 9):
            start = line.index(fields[1], line.index(fields[0]) + len(fields[0]))
            spot = Span.of(line, source, line_number).part(start, start + len(fields[1]))
            raise spot.error("scheduler-variable", f"'{fields[1]}' is not a number of slots", "a line is 'host slots ...'")
        entries.append(HostEntry(fields[0], slots=int(fields[1]), origin=f"{source}:{line_number}"))
    return entries


def _read(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    path = environ[variable]
    entries = parse_pe_hostfile(file_text(path, variable, read_text), f"{variable}={path}")
    if not entries:
        raise UsageError("scheduler-variable", f"{variable}='{path}' names no hosts", hint=INSTEAD)
    return entries


READERS = (Reader("PE_HOSTFILE", "Grid Engine", "JOB_ID", _read, agent="gridengine", command="qrsh"),)
