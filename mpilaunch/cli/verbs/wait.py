"""`mpilaunch wait`: wait for the end of a job, and exit as it did."""

from __future__ import annotations

import click

SUMMARY = "wait for the end of a job, and exit with its exit code"
USAGE = "mpilaunch wait JOB"


def main(job: str) -> int:
    """Return the exit code of the job; raises LaunchError."""
    from mpilaunch.head.control.client import ask, find
    from mpilaunch.head.detached import client, place

    if (found := place.find(job)) is not None:
        return client.wait(found)
    code: int = ask(find(job), "end", None)["exit_code"]
    return code


COMMAND = click.Command("wait", params=[click.Argument(["job"])], callback=main, add_help_option=False)
