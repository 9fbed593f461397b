"""`mpilaunch attach`: follow the output of a detached job until it ends, or until Ctrl-C leaves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mpilaunch.errors import ExitCode

if TYPE_CHECKING:
    from mpilaunch.cli.command import Invocation

SUMMARY = "follow the output of a detached job; Ctrl-C leaves it"
USAGE = "mpilaunch attach JOB"


@click.pass_obj
def main(invocation: Invocation, job: str) -> int:
    """Print the output from now on; return the exit code of the job, or 0 where it was left; raises LaunchError."""
    from mpilaunch.cli.jobs import kept
    from mpilaunch.head.detached import client

    found = client.find(job)
    invocation.console.note(f"job {found.run_id}: Ctrl-C leaves it running; mpilaunch stop {found.run_id} ends it")
    try:
        kept.show(found, None, invocation.console, follow=True, new=True)
    except KeyboardInterrupt:
        invocation.console.note(f"job {found.run_id} keeps running")
        return ExitCode.OK
    return client.wait(found)


COMMAND = click.Command("attach", params=[click.Argument(["job"])], callback=main, add_help_option=False)
