"""`mpilaunch signal`: send a signal to ranks of a running job."""

from __future__ import annotations

from signal import Signals

import click

from mpilaunch.cli.verbs import AS_JSON, RANKS, chosen_ranges, show
from mpilaunch.errors import UsageError
from mpilaunch.hosts.nodeset import name_ranks
from mpilaunch.job.state import signal_name
from mpilaunch.text import did_you_mean, is_whole_number

SUMMARY = "send a signal to ranks of a job"
USAGE = "mpilaunch signal JOB SIGNAL [--ranks RANKS] [--json]"
LAST_SIGNAL = 64


def main(job: str, signal: str, ranks: str | None, json: bool) -> int:
    """Send the signal; return the exit code; raises LaunchError."""
    from mpilaunch.head.control import client

    number = signal_number(signal)
    ranges = chosen_ranges(ranks)
    answer = client.ask(client.find(job), "signal", signal=number, ranks=ranges)
    return show(answer, [f"{signal_name(number)} sent to {name_ranks(answer['ranks'])}"], as_json=json)


def signal_number(text: str) -> int:
    """Return the number of a signal: "USR1", "sigusr1" or "10"; raises UsageError."""
    if is_whole_number(text, 2) and 1 <= int(text) <= LAST_SIGNAL:
        return int(text)
    names = {each.name.removeprefix("SIG"): int(each) for each in Signals}
    name = text.upper().removeprefix("SIG")
    if name not in names:
        message = f"'{text}' is no signal{did_you_mean(name, names)}"
        raise UsageError("option-value", message, hint="write a name or a number: USR1, SIGUSR1 or 10; kill -l lists them")
    return names[name]


COMMAND = click.Command(
    "signal",
    params=[
        click.Argument(["job"]),
        click.Argument(["signal"]),
        RANKS,
        AS_JSON,
    ],
    callback=main,
    add_help_option=False,
)
