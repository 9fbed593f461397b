"""`mpilaunch stop`: end a job, and return when its processes are proved gone."""

from __future__ import annotations

import click

from mpilaunch.cli.options import LOOK
from mpilaunch.cli.types import Option
from mpilaunch.cli.verbs import AS_JSON, show

SUMMARY = "end a job; returns when none of its processes is left"
USAGE = "mpilaunch stop JOB [--now] [--json]"


def main(job: str, now: bool, json: bool) -> int:
    """End the job; return the exit code; raises LaunchError where some of its processes may be left."""
    from mpilaunch.head.control import client

    found = client.find(job)
    answer = client.ask(found, "stop", (found.about or {})["stop_seconds"], now=now)
    end = f"job {found.run_id} has ended, with exit code {answer['exit_code']}"
    left = ": no process of it is left" if answer["swept"] else "; what its commands have left running is left alone"
    code = show(answer, [] if answer["lost"] else [f"{end}{left}"], as_json=json)
    if answer["lost"]:
        raise client.left_on(answer["lost"], end)
    return code


COMMAND = click.Command(
    "stop",
    params=[
        click.Argument(["job"]),
        Option(LOOK, "--now", "", "kill the ranks at once, without the time of --grace", configurable=False),
        AS_JSON,
    ],
    callback=main,
    add_help_option=False,
)
