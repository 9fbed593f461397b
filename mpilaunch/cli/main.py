"""The entry: run a command line, and turn what happens into an exit code and an error that a user can act on.

Whatever goes wrong ends here, never as a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from mpilaunch.cli import command
from mpilaunch.cli.console import Console
from mpilaunch.errors import ExitCode, LaunchError


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; return the exit code."""
    console = Console()
    try:
        return run(sys.argv[1:] if arguments is None else list(arguments), console, name_of(sys.argv[0]))
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


def run(words: list[str], console: Console, name: str) -> int:
    """Run a command line, complete a word of one, or print the short help when there is none; return the exit code."""
    variable = command.completion_variable(name)
    if instruction := os.environ.get(variable):
        return command.complete(name, variable, instruction)
    if not words:
        from mpilaunch.cli import help

        console.lines(help.short().splitlines())
        return ExitCode.USAGE
    return command.run(words, command.Surroundings(os.environ, console, name))


def name_of(path: str) -> str:
    """Return the name that mpilaunch was started as."""
    name = os.path.basename(path)
    return "mpilaunch" if name == "__main__.py" else name
