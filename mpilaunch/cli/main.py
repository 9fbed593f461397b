"""Entry point: runs a command line and turns every exception into an error message and an exit code, never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from mpilaunch.cli import command
from mpilaunch.cli.console import Console
from mpilaunch.cli.dialects import USAGE_CODES
from mpilaunch.cli.verbs.error_report import ErrorReport
from mpilaunch.errors import ExitCode, LaunchError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit code."""
    console, report = Console(), ErrorReport()
    name = os.path.basename(sys.argv[0])
    name = "mpilaunch" if name == "__main__.py" else name
    try:
        return run(sys.argv[1:] if arguments is None else list(arguments), console, report, name)
    except LaunchError as error:
        return _failed(error, console, report, name)
    except KeyboardInterrupt:  # while no launch handles signals
        return _failed(LaunchError("interrupted", "SIGINT to mpilaunch", exit_code=130), console, report)
    except Exception as error:
        if os.environ.get("MPILAUNCH_DEBUG"):
            import traceback

            traceback.print_exc()
        hint = "this is a bug in mpilaunch; run it again with MPILAUNCH_DEBUG=1 for a traceback"
        message = f"internal error: {type(error).__name__}: {error}"
        return _failed(LaunchError("internal", message, hint=hint, exit_code=ExitCode.INTERNAL), console, report)
    finally:
        console.end_progress()


def _failed(error: LaunchError, console: Console, report: ErrorReport, name: str = "") -> int:
    """Tell and report an error; return the exit code.

    A mistake in the command line of a launcher among USAGE_CODES, under its `name`, is told and ends as there.
    """
    peer = ""
    if error.exit_code == ExitCode.USAGE and name in USAGE_CODES:
        from mpilaunch.head.ending.peer_ends import with_host

        peer, error.exit_code = with_host(name), USAGE_CODES[name]
    console.error(error, peer)
    try:
        report.write(error, console.masked)
    except LaunchError as second:
        console.error(second)
    return error.exit_code


def run(words: list[str], console: Console, report: ErrorReport, name: str) -> int:
    """Run a command line, complete a word for a shell, or print the short help if there are no words; return the exit code.

    Args:
        report: where an error is to be reported, once that is known.
        name: the command name that mpilaunch was started under.
    """
    if name == "dshbak":
        from mpilaunch.cli.dialects.shells import dshbak

        return dshbak.main(words)
    variable = f"_{name}_COMPLETE".replace("-", "_").replace(".", "_").upper()  # as click's completion scripts set it
    if instruction := os.environ.get(variable):
        return command.complete(name, variable, instruction)
    if not words:
        from mpilaunch.cli import help

        console.lines(help.short().splitlines())
        return ExitCode.USAGE
    return command.run(words, command.Invocation(os.environ, console, report, name))
