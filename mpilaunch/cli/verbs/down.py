"""`mpilaunch down`: end the standby daemons of `mpilaunch up`."""

from __future__ import annotations

from mpilaunch.cli import options
from mpilaunch.cli.verbs import Request, refuse_program
from mpilaunch.errors import ExitCode, UsageError
from mpilaunch.job.settings import Layer

SUMMARY = "end the standby daemons of 'up'"
USAGE = "mpilaunch down"
TOPICS = ()

EFFECTIVE = ("quiet", "verbose", "config", "dialect", "allow-run-as-root")
"""Options that have an effect here, or that mpilaunch accepts everywhere."""


def main(request: Request) -> int:
    refuse_program(request, "down")
    for option in options.OPTIONS:
        if option.key not in EFFECTIVE and request.settings.layer(option.key) == Layer.COMMAND_LINE:
            message = f"{request.settings.source(option.key)} has no effect on mpilaunch down"
            raise UsageError("option-conflict", message, hint="it ends all your standby daemons, on all nodes")
    from mpilaunch.head.standby.client import take_down

    request.console.note("no standby daemon was running" if take_down() is None else "all standby daemons have ended")
    return ExitCode.OK
