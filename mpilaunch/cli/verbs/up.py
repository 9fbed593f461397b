"""`mpilaunch up`: keep a daemon ready on every node, for launches to come."""

from __future__ import annotations

from mpilaunch.cli.options import RANKS, REACH
from mpilaunch.cli.verbs import Request, refuse_program
from mpilaunch.errors import ExitCode
from mpilaunch.text import plural

SUMMARY = "keep a daemon ready on every node, for launches to come"
USAGE = "mpilaunch up [OPTIONS]"
TOPICS = (RANKS, REACH)


def main(request: Request) -> int:
    """Start the daemons that stand by; return the exit code."""
    refuse_program(request, "up", hint="launch it afterwards, without 'up': the daemons are found")
    from mpilaunch.cli.build_job import make_job
    from mpilaunch.head.standby.keeper import up

    idle = request.settings["up-idle"]
    count, dropped = up(make_job(request.settings, ["true"], request.environ), idle)
    nodes = plural(count, "node")
    request.console.remark(f"daemons stand by on {nodes}, for {idle:g} s after the last launch; mpilaunch down ends them")
    if dropped:
        from mpilaunch.hosts.nodeset import fold

        message = f"no daemon stands by on {fold(dropped)} any more: this 'up' replaced an earlier one with other nodes"
        request.console.remark(f"{message}; name all nodes in one 'up'")
    return ExitCode.OK
