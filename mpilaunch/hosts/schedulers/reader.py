"""What the readers of all batch schedulers share: their row in the table, and the errors of what a scheduler wrote.

Pure: the environment and the reading of files are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.hosts.hostfile import HostEntry, parse_hostfile
from mpilaunch.text import is_whole_number

ReadText = Callable[[str], str]
"""Path to text; raises OSError."""

INSTEAD = "name the hosts with --host or --hostfile instead"


class Reader(NamedTuple):
    """How the hosts of a job are read.

    Attributes:
        variable: holds the hosts, or the path of a file that does.
        scheduler: its name for messages.
        job_variable: holds the job's name.
        read: takes the environment, `variable` and a function that reads files; raises UsageError.
    """

    variable: str
    scheduler: str
    job_variable: str
    read: Callable[[Mapping[str, str], str, ReadText], list[HostEntry]]


def number(text: str, variable: str) -> int:
    """Return a whole number that a variable holds; raises UsageError."""
    if not is_whole_number(text, 9):
        raise UsageError("scheduler-variable", f"{variable} has '{text}' where a number belongs", hint=INSTEAD)
    return int(text)


def file_text(path: str, variable: str, read_text: ReadText) -> str:
    """Return the text of the file that a variable names; raises UsageError."""
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError("scheduler-variable", f"{variable}='{path}' cannot be read: {reason}", hint=INSTEAD) from error


def name_per_slot(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    """Read a file that names a host once for each of its slots."""
    path = environ[variable]
    return parse_hostfile(file_text(path, variable, read_text), f"{variable}={path}")
