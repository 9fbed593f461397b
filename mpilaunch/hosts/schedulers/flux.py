"""Flux: no variable lists its hosts, so only jobs of one node are supported. Source: flux-environment(7)."""

from __future__ import annotations

from collections.abc import Mapping

from mpilaunch.errors import UsageError
from mpilaunch.hosts.hostfile import HostEntry
from mpilaunch.hosts.schedulers.reader import Reader, ReadText


def _read(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    if environ.get("FLUX_JOB_NNODES") == "1":
        return []
    hint = 'pass --host "$(flux getattr hostlist)", or --host local for this node alone'
    raise UsageError("scheduler-flux", "this runs inside a Flux instance, whose hosts are in no variable", hint=hint)


READERS = (Reader("FLUX_URI", "Flux", "FLUX_JOB_ID", _read),)
