"""The command line: words to settings, settings to a job, the job to an exit code.

The only importer of click. The parts that a launch needs are imported when it comes to it, so that `--help` and an error in
the command line are quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

import click

from mpilaunch import __version__, config
from mpilaunch.console import Console, printable
from mpilaunch.errors import ExitCode, LaunchError, UsageError
from mpilaunch.options import (
    BY_FLAG,
    GROUPS,
    OPTIONS,
    Option,
    Setting,
    Settings,
    Value,
    value_from_text,
)
from mpilaunch.spelling import near

EXAMPLES = (
    ("mpilaunch -np 4 train.py", "4 ranks on this machine"),
    ("mpilaunch -H node01:8,node02:8 train.py --lr 0.1", "16 ranks on two nodes, over ssh"),
    ("mpilaunch --hostfile hosts.txt --dry-run train.py", "where each rank would go; starts nothing"),
    ("mpilaunch -N 1 -H node[01-32] --tag host uptime", "one command on each of 32 nodes"),
)
WIDTH = 100


class LaunchCommand(click.Command):
    """The command: our own reading of words, because everything after the program's name belongs to the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options; the settings go to `ctx.params`, the program and its arguments to `ctx.args`."""
        ctx.params["said"], ctx.args = read_words(args)
        return ctx.args

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the whole help, grouped by topic."""
        formatter.write("mpilaunch starts one program as N ranks on many nodes and brings everything back.\n\n")
        formatter.write_usage(ctx.command_path, "[OPTIONS] PROGRAM [ARGUMENTS...]")
        write_examples(formatter)
        for group in GROUPS:
            with formatter.section(group):
                rows = [(_spelling(option), _description(option)) for option in OPTIONS if option.group == group]
                formatter.write_dl(rows, col_max=34)
        formatter.write_paragraph()
        formatter.write_text(
            "Long options may have one dash, as mpirun's: -np 4, -hostfile FILE. TIME is seconds, or a number with s, m, h "
            "or d: 90, 5m, 1h. Each option but those that only look can also stand in a config file (np: 4) or in the "
            "environment (MPILAUNCH_NP=4); the command line wins, then the environment, then --config FILE or "
            "~/.config/mpilaunch/config.yaml."
        )


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
            needs = f"option {flag} needs {option.metavar or 'a value'}"
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


# Help


def short_help() -> str:
    """Return what somebody reads who typed `mpilaunch` alone."""
    formatter = click.HelpFormatter(max_width=WIDTH)
    formatter.write("mpilaunch starts one program as N ranks on many nodes and brings everything back.\n")
    write_examples(formatter)
    formatter.write("\nmpilaunch --help lists all options; --dry-run shows what a command would do.\n")
    return formatter.getvalue()


def write_examples(formatter: click.HelpFormatter) -> None:
    """Write commands that work, and what each does."""
    with formatter.section("Examples"):
        formatter.write_dl(EXAMPLES, col_max=60)


def _spelling(option: Option) -> str:
    if option.said_by(option.flag) is not None:
        return ", ".join(option.flags)
    flags = ", ".join(flag for flag in option.flags if flag not in option.shorthands)
    return f"{flags} {option.metavar or '|'.join(option.choices)}"


def _description(option: Option) -> str:
    notes = []
    if option.said_by(option.flag) is None:
        notes += [f"{flag} says {value}" for flag, value in option.shorthands.items()]
    if option.repeatable:
        notes.append("may be repeated")
    if option.default not in (None, False, 0, ()):
        notes.append(f"default {option.default:g}" if isinstance(option.default, float) else f"default {option.default}")
    return option.help + (f" [{'; '.join(notes)}]" if notes else "")


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

    That would cost a third of a short launch; there is nothing left to close, and what is printed is flushed here.
    """
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def run(words: list[str], environ: Mapping[str, str], console: Console) -> int:
    """Go through the steps: words, settings, job, then look or launch; return the exit code."""
    if not words:
        console.lines(short_help().splitlines())
        return ExitCode.USAGE
    context = LaunchCommand("mpilaunch", context_settings={"max_content_width": WIDTH}).make_context("mpilaunch", words)
    said: dict[str, Setting] = context.params["said"]
    if "help" in said:
        return _print(context.get_help())
    if "version" in said:
        return _print(f"mpilaunch {__version__}")
    settings = config.load_settings(said, environ)
    console.quiet, console.verbose = settings["quiet"], settings["verbose"]
    if settings["json"] and not settings["dry-run"]:
        raise UsageError("option-conflict", "--json goes with --dry-run", hint="--report FILE writes what a job did as JSON")
    if settings["show-config"]:
        from mpilaunch.plan import settings_as_text

        return _print(settings_as_text(settings))
    if not context.args:
        raise UsageError("no-program", "no program to run", hint="say it after the options: mpilaunch -np 4 train.py")
    return run_program(settings, context.args, environ, console)


def run_program(settings: Settings, program: list[str], environ: Mapping[str, str], console: Console) -> int:
    """Make the job; print it, or launch it; return the exit code."""
    from mpilaunch import plan
    from mpilaunch.prepare import make_job

    job = make_job(settings, program, environ)
    rank, size = settings["show-env"], len(job.job_map.placements)
    if rank is not None:
        if rank >= size:
            raise UsageError("option-value", f"--show-env: there is no rank {rank}: the job has ranks 0 to {size - 1}")
        variables = plan.environment_of_rank(job, rank)
        shown = variables if settings["show-secrets"] else plan.mask_secrets(variables)
        return _print("\n".join(f"{name}={printable(value)}" for name, value in shown.items()))
    if settings["dry-run"]:
        if settings["json"]:
            import json

            return _print(json.dumps(plan.plan_as_json(job, settings), indent=2))
        return _print(plan.plan_as_text(job))
    if settings["display-map"]:
        console.lines(plan.map_as_text(job).splitlines())
    from mpilaunch.head.launch import launch

    verdict = launch(job, console)
    console.verdict(verdict)
    return verdict.exit_code


def _print(text: str) -> int:
    """Print what was asked for on stdout, where it can be piped; a reader that goes away (`| head`) is no fault."""
    try:
        print("\n".join(printable(line) for line in text.splitlines()), flush=True)
    except BrokenPipeError:
        # Python flushes stdout again at its exit: let that find an open descriptor.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.OK
