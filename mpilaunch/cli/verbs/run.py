"""`mpilaunch run`, or `mpilaunch` alone: make the job of a command line, then print what it would do, or launch it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from mpilaunch.cli import verbs
from mpilaunch.cli.console import print_result, printable
from mpilaunch.cli.verbs import Request
from mpilaunch.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from mpilaunch.agent import PrestartedAgent
    from mpilaunch.job.settings import Settings
    from mpilaunch.job.spec import JobSpec

SUMMARY = "start a program as N ranks; this verb need not be written"
USAGE = "mpilaunch [OPTIONS] PROGRAM [ARGUMENTS...]"
TOPICS = ()

NAME_NODES = ("host", "hostfile", "slot-map", "agent")
"""Options without which a job most likely runs on this machine."""
PROGRAM_MISSING = "start-program-missing"
"""Reference of the error that says that a node does not have the program."""
OPTIONS_BEHIND = frozenset(
    {"-np", "--np", "-hostfile", "--hostfile", "-machinefile", "--machinefile", "-npernode", "--npernode", "-ppn"}
)
"""Options of ours that few programs have: behind a program that fails they are likely misplaced."""
READERS = frozenset(
    {"python", "ipython", "pypy", "perl", "ruby", "lua", "node", "julia", "R", "octave", "tclsh", "bc", "gdb", "cat"}
    | {"sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh"}
)
"""Programs that read stdin when they are started without arguments; a version may follow the name."""
READER_FLAGS = frozenset({"-", "-i", "-l", "-q", "-s", "-u", "--interactive", "--login"})
"""Their options that change nothing about this."""


def main(request: Request) -> int:
    """Print what was asked for, or run the programs; return the exit code."""
    settings = request.settings
    if settings["json"] and not settings["dry-run"]:
        raise UsageError("option-conflict", "--json goes with --dry-run", hint="--report FILE writes what a job did as JSON")
    if settings["show-config"]:
        from mpilaunch.job.plan import settings_as_text

        return print_result(settings_as_text(settings, [section.settings for section in request.sections]))
    if settings["up"] and settings["down"]:
        raise UsageError("option-conflict", "--up and --down cannot be used together")
    for verb in ("up", "down"):
        if settings[verb]:
            return verbs.main_of(verb)(request)
    if not request.sections[0].program:
        raise UsageError("no-program", "no program to run", hint="say it after the options: mpilaunch -np 4 train.py")
    if settings["show-env"] is not None or settings["dry-run"]:
        from mpilaunch.cli.build_job import make_job_of_sections

        return look(make_job_of_sections(settings, request.sections, request.environ), settings)
    from mpilaunch.head.begin import local_agent

    named = {name for section in request.sections for name in section.settings}
    here = not any(settings.layer(name) or name in named for name in NAME_NODES)
    # This machine's daemon gets ready while the job is made.
    with local_agent(daemons=1 if here else 0) as local:
        return launch(request, local)


def launch(request: Request, local: PrestartedAgent) -> int:
    """Make the job and launch it; return the exit code."""
    from mpilaunch.cli.build_job import make_job_of_sections
    from mpilaunch.head import begin

    settings, console = request.settings, request.console
    job = make_job_of_sections(settings, request.sections, request.environ)
    if settings["display-allocation"]:
        from mpilaunch.job.plan import allocation_as_text

        console.lines(allocation_as_text(job).splitlines())
    if job.pending:
        from mpilaunch.head.nodes.survey import map_by_topology

        job = map_by_topology(job, console)
    if settings["display-map"]:
        from mpilaunch.job.plan import map_as_text

        console.lines(map_as_text(job).splitlines())
    if job.agent.insecure_host_keys:
        console.warning("--insecure-host-keys: no host key is checked, so a machine in between could read and change this job")
    programs = [section.program for section in request.sections]
    if job.stdin == "none" and settings.layer("stdin") == 0:  # stdin is a terminal
        reader = next((program[0] for program in programs if reads_stdin(program)), None)
        end = f", so {reader} gets no input; --stdin 0 gives it to rank 0" if reader else " without --stdin"
        console.remark(f"stdin is a terminal, which no rank reads{end}", level=0 if reader else 1)
    try:
        verdict = begin.launch(job, console, local)
    except LaunchError as error:
        if error.reference == PROGRAM_MISSING and (hint := hint_for_missing(programs)):
            error.hint = hint
        raise
    if verdict.cause == "rank-failed" and verdict.hint is None and (hint := hint_for_failed(programs)):
        verdict = replace(verdict, hint=hint)
    console.verdict(verdict)
    return verdict.exit_code


def reads_stdin(program: Sequence[str]) -> bool:
    """Return whether a command line is an interpreter alone, which reads stdin and ends at once where there is no input."""
    name = program[0].rpartition("/")[2].rstrip("0123456789.")
    return name in READERS and READER_FLAGS.issuperset(program[1:])


def hint_for_missing(programs: Sequence[Sequence[str]]) -> str | None:
    """Return what to do about a program that no node has, and whose name is a whole command line or sets a variable."""
    for program in programs:
        if (hint := hint_for_variables(program)) is not None:
            return hint
    name = next((program[0] for program in programs if any(sign in program[0] for sign in " ;|&><")), None)
    if name is None:
        return None
    if any(sign in name for sign in ";|&><"):
        return f"no shell reads this word: mpilaunch sh -c {shlex.quote(name)}"
    return f"this is one word: leave the quotes out, mpilaunch {name}"


def hint_for_variables(program: Sequence[str]) -> str | None:
    """Return what to do about words like NAME=VALUE before a program, which only a shell takes for variables."""
    from mpilaunch.job.environment.contracts import FIXED  # only this error needs it

    variables = list(takewhile(lambda word: re.fullmatch("[A-Za-z_][A-Za-z0-9_]*=.*", word, re.DOTALL), program))
    if not variables or " " in variables[0]:
        return None
    if fixed := [word for word in variables if word.partition("=")[0] in FIXED]:
        return f"leave {fixed[0]} out: mpilaunch sets {fixed[0].partition('=')[0]} for every rank"
    rest = list(program[len(variables) :])[:1]
    exports = [word for variable in variables for word in ("-x", variable)]
    return f"variables of the ranks are set with -x: {shlex.join(['mpilaunch', *exports, *rest])}"


def hint_for_failed(programs: Sequence[Sequence[str]]) -> str | None:
    """Return what to do about a program that was given an option of ours among its arguments, where that is likely."""
    for program in programs:
        for argument in program[1:]:
            flag = argument.partition("=")[0]
            if flag in OPTIONS_BEHIND:
                return f"{flag} stands behind {program[0]} and was given to it: options of mpilaunch stand before the program"
    return None


def look(job: JobSpec, settings: Settings) -> int:
    """Print what a launch would do, and start nothing; return the exit code."""
    from mpilaunch.job import plan

    rank, size = settings["show-env"], len(job.job_map.placements)
    if rank is not None:
        from mpilaunch.head.nodes.preparation import environment_before_launch
        from mpilaunch.job.masking import mask_variables

        if job.pending:
            hint = "a rank's place is known when the nodes have been asked: run it with --display-map"
            raise UsageError("option-value", "--show-env: the map of this job depends on its nodes", hint=hint)
        if rank >= size:
            raise UsageError("option-value", f"--show-env: there is no rank {rank}: the job has ranks 0 to {size - 1}")
        variables = environment_before_launch(job, rank)
        shown = variables if settings["show-secrets"] else mask_variables(variables)
        return print_result("\n".join(f"{name}={printable(value)}" for name, value in shown.items()))
    if settings["json"]:
        import json

        return print_result(json.dumps(plan.plan_as_json(job, settings), indent=2))
    return print_result(plan.plan_as_text(job))
