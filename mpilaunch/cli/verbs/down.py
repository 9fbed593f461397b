"""`mpilaunch down`: end the daemons that `mpilaunch up` keeps."""

from __future__ import annotations

from mpilaunch.cli.verbs import Request, refuse_program
from mpilaunch.errors import ExitCode

SUMMARY = "end the daemons that 'up' keeps"
USAGE = "mpilaunch down"
TOPICS = ()


def main(request: Request) -> int:
    """End them; return the exit code."""
    refuse_program(request, "down")
    from mpilaunch.head.standby.client import take_down

    request.console.remark("no daemon stood by" if take_down() is None else "no daemon stands by any more")
    return ExitCode.OK
