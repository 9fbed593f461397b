"""`mpilaunch logs`: print what a detached job has printed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import click

from mpilaunch.cli.options import LOOK
from mpilaunch.cli.types import Option
from mpilaunch.cli.verbs import RANKS, chosen_ranks
from mpilaunch.errors import ExitCode

if TYPE_CHECKING:
    from mpilaunch.cli.command import Invocation

SUMMARY = "print the output of a detached job"
USAGE = "mpilaunch logs JOB [-f] [--ranks RANKS]"


@click.pass_obj
def main(invocation: Invocation, job: str, follow: bool, ranks: str | None) -> int:
    """Print the output; return the exit code; raises LaunchError."""
    from mpilaunch.cli.jobs import kept
    from mpilaunch.head.detached import client

    chosen = chosen_ranks(ranks)
    try:
        kept.show(client.find(job), None if chosen is None else set(chosen), invocation.console, follow=follow)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return ExitCode.OK


COMMAND = click.Command(
    "logs",
    params=[
        click.Argument(["job"]),
        Option(LOOK, "--follow -f", "", "follow until the job ends", configurable=False),
        RANKS,
    ],
    callback=main,
    add_help_option=False,
)
