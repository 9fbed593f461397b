"""The command line: words to settings, settings to a job, the job to an exit code.

What a step needs is imported when it comes to it: an error is quick, and so is a launch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpilaunch import __version__, config
from mpilaunch.console import Console, printable
from mpilaunch.errors import ExitCode, LaunchError, UsageError
from mpilaunch.words import DIALECTS, Command, read_command

if TYPE_CHECKING:
    from mpilaunch.agent import PrestartedAgent
    from mpilaunch.job.spec import JobSpec
    from mpilaunch.options import Settings

NAME_NODES = ("host", "hostfile", "slot-map", "agent")
"""Options without which a job most likely runs on this machine."""


# The steps of a command


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit code."""
    console = Console()
    try:
        return run(sys.argv[1:] if arguments is None else list(arguments), os.environ, console, os.path.basename(sys.argv[0]))
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


def run(words: list[str], environ: Mapping[str, str], console: Console, name: str = "mpilaunch") -> int:
    """Go through the steps: words, settings, job, then look or launch; return the exit code.

    `name` is what mpilaunch was started as.
    """
    if not words:
        from mpilaunch.help import short_help

        console.lines(short_help().splitlines())
        return ExitCode.USAGE
    command = read_command(words, name, config.read_text)
    if "help" in command.said:
        from mpilaunch.help import dialect_help, full_help

        topic = command.sections[0].program[:1]
        return _print(dialect_help(topic[0]) if topic and topic[0] in DIALECTS else full_help())
    if "version" in command.said:
        return _print(f"mpilaunch {__version__}")
    settings = config.load_settings(command.said, environ, command.habits)
    console.quiet, console.verbose = settings["quiet"], settings["verbose"]
    for text, level in command.notes:
        console.remark(text, level=level)
    if settings["json"] and not settings["dry-run"]:
        raise UsageError("option-conflict", "--json goes with --dry-run", hint="--report FILE writes what a job did as JSON")
    if settings["show-config"]:
        from mpilaunch.job.plan import settings_as_text

        return _print(settings_as_text(settings, [section.said for section in command.sections]))
    if settings["down"] or settings["up"]:
        alone(settings, command)
    if settings["down"]:
        from mpilaunch.head.standby.client import take_down

        console.remark("no daemon stands by any more" if take_down() else "no daemon stood by")
        return ExitCode.OK
    if settings["up"]:
        return keep_up(settings, environ, console)
    if not command.sections[0].program:
        raise UsageError("no-program", "no program to run", hint="say it after the options: mpilaunch -np 4 train.py")
    return run_programs(settings, command, environ, console)


def run_programs(settings: Settings, command: Command, environ: Mapping[str, str], console: Console) -> int:
    """Make the job; print it, or launch it; return the exit code."""
    if settings["show-env"] is not None or settings["dry-run"]:
        from mpilaunch.prepare import make_job_of_sections

        return look(make_job_of_sections(settings, command.sections, environ), settings)
    from mpilaunch.head.begin import local_agent

    named = {name for section in command.sections for name in section.said}
    here = not any(settings.layer(name) or name in named for name in NAME_NODES)
    with local_agent(daemons=1 if here else 0) as local:
        return launch_programs(settings, command, environ, console, local)


def launch_programs(
    settings: Settings, command: Command, environ: Mapping[str, str], console: Console, local: PrestartedAgent
) -> int:
    """Make the job and launch it; return the exit code."""
    from mpilaunch.prepare import make_job_of_sections

    job = make_job_of_sections(settings, command.sections, environ)
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
    from mpilaunch.head.begin import launch

    verdict = launch(job, console, local)
    console.verdict(verdict)
    return verdict.exit_code


def alone(settings: Settings, command: Command) -> None:
    """See that --up or --down has nothing beside it that it would not do; raises UsageError."""
    option = "--up" if settings["up"] else "--down"
    program = command.sections[0].program
    if program:
        hint = "launch it without --up afterwards: the daemons are found" if settings["up"] else None
        raise UsageError("option-conflict", f"{option} runs no program, and here is {program[0]}", hint=hint)
    others = [f"--{name}" for name in ("down", "dry-run", "show-env") if settings[name] not in (None, False)]
    if others not in ([], [option]):
        raise UsageError("option-conflict", f"{option} and {others[-1]} cannot be said together")


def keep_up(settings: Settings, environ: Mapping[str, str], console: Console) -> int:
    """Let daemons stand by on the nodes; return the exit code."""
    from mpilaunch.head.standby.keeper import up
    from mpilaunch.prepare import make_job

    count = up(make_job(settings, ["true"], environ), settings["up-idle"])
    nodes, idle = f"{count} node{'s' if count > 1 else ''}", f"{settings['up-idle']:g} s"
    console.remark(f"daemons stand by on {nodes}, for {idle} after the last launch; mpilaunch --down ends them")
    return ExitCode.OK


def look(job: JobSpec, settings: Settings) -> int:
    """Print what a launch would do, and start nothing; return the exit code."""
    from mpilaunch.job import plan
    from mpilaunch.job.masking import mask_variables

    rank, size = settings["show-env"], len(job.job_map.placements)
    if rank is not None:
        from mpilaunch.head.nodes.preparation import environment_before_launch

        if job.pending:
            hint = "a rank's place is known when the nodes have been asked: run it with --display-map"
            raise UsageError("option-value", "--show-env: the map of this job depends on its nodes", hint=hint)
        if rank >= size:
            raise UsageError("option-value", f"--show-env: there is no rank {rank}: the job has ranks 0 to {size - 1}")
        variables = environment_before_launch(job, rank)
        shown = variables if settings["show-secrets"] else mask_variables(variables)
        return _print("\n".join(f"{name}={printable(value)}" for name, value in shown.items()))
    if settings["json"]:
        import json

        return _print(json.dumps(plan.plan_as_json(job, settings), indent=2))
    return _print(plan.plan_as_text(job))


def _print(text: str) -> int:
    """Print what was asked for on stdout, where it can be piped; a reader that goes away (`| head`) is no fault."""
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names may be in any script
    try:
        print("\n".join(printable(line) for line in text.splitlines()), flush=True)
    except BrokenPipeError:
        # Python flushes stdout again at its exit: let that find an open descriptor.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        told = f"what was asked for cannot be written to stdout: {error.strerror}"
        raise LaunchError("output-lost", told, exit_code=ExitCode.OUTPUT_LOST) from error
    return ExitCode.OK
