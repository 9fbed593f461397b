"""`mpilaunch up`: keep a standby daemon on every node for later launches."""

from __future__ import annotations

from mpilaunch.cli.options import RANKS, REACH
from mpilaunch.cli.verbs import Request, refuse_program
from mpilaunch.errors import ExitCode
from mpilaunch.job.settings import Section
from mpilaunch.text import plural

SUMMARY = "keep a standby daemon on every node for later launches"
USAGE = "mpilaunch up [OPTIONS]"
TOPICS = (RANKS, REACH)


def main(request: Request) -> int:
    refuse_program(request, "up", hint="launch the program afterwards, without 'up': the launch uses the daemons")
    from mpilaunch.cli.job.make import make_job
    from mpilaunch.head.standby.keeper import up

    idle = request.settings["up-idle"]
    count, dropped = up(make_job(request.settings, [Section(["true"])], request.environ), idle)
    nodes = plural(count, "node")
    request.console.note(f"standby daemons run on {nodes} until {idle:g} s after the last launch; mpilaunch down ends them")
    if dropped:
        from mpilaunch.hosts.nodeset import fold

        message = f"standby daemons on {fold(dropped)} have ended: this 'up' replaced an earlier one with other nodes"
        request.console.note(f"{message}; name all nodes in one 'up'")
    return ExitCode.OK
