"""`mpilaunch stack`: show the stacks of Python in the ranks of a running job, which runs on."""

from __future__ import annotations

import click

from mpilaunch.cli.options import LOOK
from mpilaunch.cli.types import Option
from mpilaunch.cli.verbs import AS_JSON, RANKS, chosen_ranks, show
from mpilaunch.errors import UsageError
from mpilaunch.hosts.nodeset import name_ranks
from mpilaunch.job.hangs.autopsy import nccl_lines

SUMMARY = "show the stacks of a job's ranks"
USAGE = "mpilaunch stack JOB [--ranks RANKS] [--nccl] [--json]"


def main(job: str, ranks: str | None, nccl: bool, json: bool) -> int:
    """Print the stacks; return the exit code; raises LaunchError."""
    from mpilaunch.cli.jobs import tables
    from mpilaunch.head.control import client

    chosen = chosen_ranks(ranks)
    answer = client.ask(client.find(job), "stacks", nccl=nccl)
    rows = answer["ranks"]
    if chosen is not None:
        if missing := set(chosen) - {row["rank"] for row in rows}:
            raise UsageError("option-value", f"the job has no {name_ranks(sorted(missing))}")
        rows = [row for row in rows if row["rank"] in chosen]
    report = nccl_lines(answer["nccl"])
    if nccl and not report:
        report = ["NCCL gives no report: it needs NCCL 2.24 in a rank, and NCCL_RAS_ENABLE not 0"]
    return show({"ranks": rows, "nccl": answer["nccl"]}, [*tables.stacks_as_text(rows), *report], as_json=json)


COMMAND = click.Command(
    "stack",
    params=[
        click.Argument(["job"]),
        RANKS,
        Option(LOOK, "--nccl", "", "ask NCCL too which ranks lag behind", configurable=False),
        AS_JSON,
    ],
    callback=main,
    add_help_option=False,
)
