"""The verbs: one module for each, with `SUMMARY`, `USAGE` and `TOPICS` for its help, and `main`, which runs it.

A new verb is a new module and its name in `NAMES`. A verb that contacts nodes takes the options of a launch, and `OPTIONS` of
its own if it has any. One that does not has a `COMMAND`, a click command that declares all its options and returns the exit
code; its context's `obj` is a `Invocation`. Only the first word of a command line can be a verb; the default is `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from mpilaunch.cli.console import Console, print_result
from mpilaunch.cli.options import LOOK
from mpilaunch.cli.types import Option
from mpilaunch.cli.verbs.error_report import ErrorReport
from mpilaunch.errors import UsageError
from mpilaunch.hosts.nodeset import Span, parse_numbers, ranges_of
from mpilaunch.job.settings import Layer, Section, Settings

if TYPE_CHECKING:
    import click


NAMES = ("run", "up", "down", "jobs", "logs", "attach", "wait", "stack", "signal", "stop")


AS_JSON = Option(LOOK, "--json", "", "print JSON (docs/jobs.md)", configurable=False)
RANKS = Option(LOOK, "--ranks", "RANKS", "only these ranks, such as 0-3,8", configurable=False)
"""Options of verbs about jobs."""


class Request(NamedTuple):
    """A parsed command line, with the environment, the user's console and the place for an error."""

    settings: Settings
    sections: tuple[Section, ...]
    environ: Mapping[str, str]
    console: Console
    report: ErrorReport


def module_of(name: str) -> ModuleType:
    return import_module(f"{__name__}.{name}")


def options_of(name: str) -> tuple[Option, ...]:
    """Return the options that only this verb has."""
    return getattr(module_of(name), "OPTIONS", ())


def command_of(name: str) -> click.Command | None:
    """Return the command of a verb that does not take the options of a launch."""
    return getattr(module_of(name), "COMMAND", None)


def main_of(name: str) -> Callable[[Request], int]:
    """Return the main function of a verb, which returns an exit code."""
    main: Callable[[Request], int] = module_of(name).main
    return main


def chosen_ranks(text: str | None) -> tuple[int, ...] | None:
    """Return the numbers of --ranks, None without it; raises UsageError."""
    return None if text is None else parse_numbers(Span.of(text, "--ranks"))


def chosen_ranges(text: str | None) -> list[list[int]] | None:
    """Return the ranges of --ranks, as requests have them, None without it; raises UsageError."""
    chosen = chosen_ranks(text)
    return None if chosen is None else ranges_of(chosen)


def show(value: Any, text: Sequence[str], *, as_json: bool) -> int:
    """Print the result of a verb, for people or as JSON; return the exit code."""
    if not as_json:
        return print_result("\n".join(text))
    import json

    return print_result(json.dumps(value, indent=2))


def refuse_program(request: Request, verb: str, hint: str | None = None) -> None:
    """Raise UsageError if the command line of a verb that runs no program has one, or an option that only shows a plan."""
    if program := request.sections[0].program:
        raise UsageError("option-conflict", f"mpilaunch {verb} runs no program, but was given '{program[0]}'", hint=hint)
    for name in ("dry-run", "show-env", "slurm"):
        if request.settings[name] not in (None, False) and request.settings.layer(name) == Layer.COMMAND_LINE:
            raise UsageError("option-conflict", f"mpilaunch {verb} and --{name} cannot be used together")

