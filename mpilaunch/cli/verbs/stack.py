"""`mpilaunch stack`: show the stacks of Python and C in the ranks of a running job, which keeps running."""

from __future__ import annotations

import click

from mpilaunch.cli.options import LOOK
from mpilaunch.cli.types import Option
from mpilaunch.cli.verbs import AS_JSON, RANKS, chosen_ranges, show
from mpilaunch.job.hangs.autopsy import nccl_lines

SUMMARY = "show the stacks of a job's ranks"
USAGE = "mpilaunch stack JOB [--ranks RANKS] [--native] [--nccl] [--json]"


def main(job: str, ranks: str | None, native: bool, nccl: bool, json: bool) -> int:
    """Print the stacks; return the exit code; raises LaunchError."""
    from mpilaunch.cli.jobs import tables
    from mpilaunch.head.control import client
    from mpilaunch.head.observe.backtraces import LONGEST_READ

    ranges = chosen_ranges(ranks)
    seconds = client.ANSWER_SECONDS + (LONGEST_READ if native else 0.0)
    answer = client.ask(client.find(job), "stacks", seconds, ranks=ranges, native=native, nccl=nccl)
    report = nccl_lines(answer["nccl"])
    if nccl and not report:
        report = ["NCCL gives no report: it needs NCCL 2.24 in a rank, and NCCL_RAS_ENABLE not 0"]
    return show(answer, [*tables.stacks_as_text(answer["ranks"]), *report], as_json=json)


COMMAND = click.Command(
    "stack",
    params=[
        click.Argument(["job"]),
        RANKS,
        Option(LOOK, "--native", "", "read the C stacks too, with gdb where the nodes have it", configurable=False),
        Option(LOOK, "--nccl", "", "ask NCCL too which ranks lag behind", configurable=False),
        AS_JSON,
    ],
    callback=main,
    add_help_option=False,
)
