"""`mpilaunch jobs`: list this user's jobs that run from this machine, or the ranks of one."""

from __future__ import annotations

import click

from mpilaunch.cli.verbs import AS_JSON, show

SUMMARY = "list your jobs on this machine, or what the ranks of one do"
USAGE = "mpilaunch jobs [JOB] [--json]"
NO_JOB = "no job of yours runs on this machine"


def main(job: str | None, json: bool) -> int:
    """Print the jobs, or one; return the exit code."""
    from mpilaunch.cli.jobs import tables
    from mpilaunch.head.control import client
    from mpilaunch.head.detached import place

    if job is not None:
        found = client.find(job)
        about, ranks = found.about or {}, client.ask(found, "ranks")["ranks"]
        return show({"job": about, "ranks": ranks}, tables.ranks_as_text(about, ranks), as_json=json)
    from mpilaunch.head.standby.client import kept

    jobs, keepers = client.find_all(), kept()
    ended = [one for one in place.all_kept() if not one.runs]
    data = [{"id": one.run_id, "pid": one.pid, "state": tables.SILENT} if one.about is None else one.about for one in jobs]
    lines = tables.jobs_as_text([(one.run_id, one.about) for one in jobs]) if jobs else [NO_JOB]
    if ended:
        lines += ["", *tables.ended_as_text(ended)]
    return show(
        {
            "jobs": data,
            "standby": [keeper._asdict() for keeper in keepers],
            "ended": [{**one.about, **(one.end or {}), "folder": one.folder} for one in ended],
        },
        [*lines, *(tables.standby_as_text(keeper.idle, keeper.busy) for keeper in keepers)],
        as_json=json,
    )


COMMAND = click.Command(
    "jobs",
    params=[
        click.Argument(["job"], required=False),
        AS_JSON,
    ],
    callback=main,
    add_help_option=False,
)
