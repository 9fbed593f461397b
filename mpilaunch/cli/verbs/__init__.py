"""The verbs: one file for each, with a `SUMMARY` and `TOPICS` for its help, and `main`, which does it.

A new verb is a new file and its name in the line below. A verb stands in the first place of a command line only; `run` need not
be written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from mpilaunch.cli.console import Console
from mpilaunch.errors import UsageError
from mpilaunch.job.settings import Section, Settings

NAMES = ("run", "up", "down")


@dataclass(frozen=True)
class Request:
    """What a verb is to do."""

    settings: Settings
    sections: tuple[Section, ...]
    environ: Mapping[str, str]
    console: Console


def module_of(name: str) -> ModuleType:
    """Return the module of a verb."""
    return import_module(f"{__name__}.{name}")


def main_of(name: str) -> Callable[[Request], int]:
    """Return the function of a verb, which returns an exit code."""
    main: Callable[[Request], int] = module_of(name).main
    return main


def summary_of(name: str) -> str:
    """Return one line about a verb."""
    return str(module_of(name).SUMMARY)


def refuse_program(request: Request, verb: str, hint: str | None = None) -> None:
    """Raise UsageError when a verb that runs no program was given one, or an option that asks for something else."""
    program = request.sections[0].program
    verb = f"--{verb}" if request.settings[verb] else f"mpilaunch {verb}"
    if program:
        raise UsageError("option-conflict", f"{verb} runs no program, and here is {program[0]}", hint=hint)
    for name in ("dry-run", "show-env"):
        if request.settings[name] not in (None, False):
            raise UsageError("option-conflict", f"{verb} and --{name} cannot be used together")
