"""Entry point: runs a command line and turns every exception into an error message and an exit code, never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from mpilaunch.cli import command
from mpilaunch.cli.console import Console
from mpilaunch.errors import ExitCode, LaunchError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit code."""
    console = Console()
    try:
        name = os.path.basename(sys.argv[0])
        name = "mpilaunch" if name == "__main__.py" else name
        return run(sys.argv[1:] if arguments is None else list(arguments), console, name)
    except LaunchError as error:
        console.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get("MPILAUNCH_DEBUG"):
            import traceback

            traceback.print_exc()
        hint = "this is a bug in mpilaunch; run it again with MPILAUNCH_DEBUG=1 for a traceback"
        console.error(LaunchError("internal", f"internal error: {type(error).__name__}: {error}", hint=hint))
        return ExitCode.INTERNAL
    finally:
        console.end_progress()


def run(words: list[str], console: Console, name: str) -> int:
    """Run a command line, complete a word for a shell, or print the short help if there are no words; return the exit code.

    Args:
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
    return command.run(words, command.Surroundings(os.environ, console, name))
