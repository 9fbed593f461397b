"""The command line: words to settings, settings to a job, the job to an exit code.

It reads the words itself, because all that follows the program's name belongs to the program, and mpirun's long options have
one dash. What a step needs is imported when it comes to it: an error is quick, and so is a launch.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from mpilaunch import __version__, config
from mpilaunch.console import Console, printable
from mpilaunch.errors import ExitCode, LaunchError, UsageError
from mpilaunch.options import (
    BY_FLAG,
    Option,
    Setting,
    Settings,
    Value,
    value_from_text,
)
from mpilaunch.spelling import near

if TYPE_CHECKING:
    from mpilaunch.jobspec import JobSpec


def read_words(words: Sequence[str]) -> tuple[dict[str, Setting], list[str]]:
    """Return what the options say, and the program with its arguments; raises UsageError.

    The first word that is no option is the program; so is the one after `--`.
    """
    said: dict[str, Value] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        flag, equals, text = word.partition("=")
        typed = flag
        option, flag = _option_of(flag)
        values = [text] if equals else []
        alone = option.said_by(flag)
        if equals and alone is not None and flag != option.flag:
            raise UsageError("option-value", f"option {flag} takes no value")
        if not equals and alone is not None:
            said[option.name] = alone
            continue
        while len(values) < option.words and rest:
            values.append(rest.pop(0))
        if len(values) < option.words:
            needs = f"option {typed} needs {option.metavar or 'a value'}"
            raise UsageError("option-value", needs, hint=f"{option.flag}: {option.help}")
        value = value_from_text(option, "=".join(values), flag)
        earlier = said.get(option.name)
        said[option.name] = (*(earlier if isinstance(earlier, tuple) else ()), str(value)) if option.repeatable else value
    return {name: Setting(value, f"--{name}", layer=3) for name, value in said.items()}, rest


def _option_of(word: str) -> tuple[Option, str]:
    """Return the option of a flag, and the flag as the table spells it."""
    # `-np` is `--np`, but `-n` is never `--n`.
    for flag in (word, "-" + word) if len(word) > 2 else (word,):
        if flag in BY_FLAG:
            return BY_FLAG[flag], flag
    digits = len(word) - len(word.rstrip("0123456789"))
    if digits and not word.startswith("--") and (glued := word[:-digits]) in {*BY_FLAG, *(flag[1:] for flag in BY_FLAG)}:
        hint = f"write {glued} {word[-digits:]}"
        raise UsageError("option-unknown", f"unknown option {word}", hint=hint)
    known = near("--" + word.lstrip("-"), BY_FLAG) if len(word) > 2 else None
    guess = f"; did you mean {known if word.startswith('--') else known[1:]}?" if known else ""
    raise UsageError("option-unknown", f"unknown option {word}{guess}", hint="mpilaunch --help lists all options")


# The steps of a command


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit code."""
    console = Console()
    try:
        return run(sys.argv[1:] if arguments is None else list(arguments), os.environ, console)
    except LaunchError as error:
        console.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get("MPILAUNCH_DEBUG"):
            import traceback

            traceback.print_exc()
        console.error(
            LaunchError(
                "internal",
                f"internal error: {type(error).__name__}: {error}",
                hint="this is a fault of mpilaunch; run it again with MPILAUNCH_DEBUG=1 to see where it happened",
            )
        )
        return ExitCode.INTERNAL
    finally:
        console.end_progress()


def entry() -> NoReturn:
    """Run as the command `mpilaunch`, and end the process without taking Python apart first.

    That would cost a third of a short launch; there is nothing left to close, and what is printed is flushed here. For the
    same reason nothing is collected before the launch runs: loading makes hardly any garbage.
    """
    gc.disable()
    open_standard_descriptors()
    code = main()
    for stream in (sys.stdout, sys.stderr):
        # A stream that was closed before us is None.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def open_standard_descriptors() -> None:
    """See to it that 0, 1 and 2 are open: whoever closed them would get a socket or a file of ours in their place."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one


def run(words: list[str], environ: Mapping[str, str], console: Console) -> int:
    """Go through the steps: words, settings, job, then look or launch; return the exit code."""
    if not words:
        from mpilaunch.help import short_help

        console.lines(short_help().splitlines())
        return ExitCode.USAGE
    said, program = read_words(words)
    if "help" in said:
        from mpilaunch.help import full_help

        return _print(full_help())
    if "version" in said:
        return _print(f"mpilaunch {__version__}")
    settings = config.load_settings(said, environ)
    console.quiet, console.verbose = settings["quiet"], settings["verbose"]
    if settings["json"] and not settings["dry-run"]:
        raise UsageError("option-conflict", "--json goes with --dry-run", hint="--report FILE writes what a job did as JSON")
    if settings["show-config"]:
        from mpilaunch.plan import settings_as_text

        return _print(settings_as_text(settings))
    if not program:
        raise UsageError("no-program", "no program to run", hint="say it after the options: mpilaunch -np 4 train.py")
    return run_program(settings, program, environ, console)


def run_program(settings: Settings, program: list[str], environ: Mapping[str, str], console: Console) -> int:
    """Make the job; print it, or launch it; return the exit code."""
    from mpilaunch.prepare import make_job

    job = make_job(settings, program, environ)
    if settings["show-env"] is not None or settings["dry-run"]:
        return look(job, settings)
    if settings["display-map"]:
        from mpilaunch.plan import map_as_text

        console.lines(map_as_text(job).splitlines())
    from mpilaunch.head.begin import launch

    verdict = launch(job, console)
    console.verdict(verdict)
    return verdict.exit_code


def look(job: JobSpec, settings: Settings) -> int:
    """Print what a launch would do, and start nothing; return the exit code."""
    from mpilaunch import plan

    rank, size = settings["show-env"], len(job.job_map.placements)
    if rank is not None:
        if rank >= size:
            raise UsageError("option-value", f"--show-env: there is no rank {rank}: the job has ranks 0 to {size - 1}")
        variables = plan.environment_of_rank(job, rank)
        shown = variables if settings["show-secrets"] else plan.mask_secrets(variables)
        return _print("\n".join(f"{name}={printable(value)}" for name, value in shown.items()))
    if settings["json"]:
        import json

        return _print(json.dumps(plan.plan_as_json(job, settings), indent=2))
    return _print(plan.plan_as_text(job))


def _print(text: str) -> int:
    """Print what was asked for on stdout, where it can be piped; a reader that goes away (`| head`) is no fault."""
    try:
        print("\n".join(printable(line) for line in text.splitlines()), flush=True)
    except BrokenPipeError:
        # Python flushes stdout again at its exit: let that find an open descriptor.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.OK
