"""The row type of scheduler readers, and the helpers that they share. Pure: the function that reads files is an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mpilaunch.errors import UsageError, reason_of
from mpilaunch.hosts.hostfile import HostEntry, parse_hostfile
from mpilaunch.text import is_whole_number

ReadText = Callable[[str], str]
"""Returns the text of a file by its path; raises OSError."""

INSTEAD = "name the hosts with --host or --hostfile instead"


class Reader(NamedTuple):
    """One source of hosts: a variable with the hosts or the path of a file, and the variable with the job's id.

    `read` takes the environment, `variable` and a function that reads files; it raises UsageError. `agent` reaches the hosts
    from within the job where `command` is installed; `task_cpus` has the CPUs of each task, and `in_step` tells
    from the environment whether this process is a task of a step.
    """

    variable: str
    scheduler: str
    job_variable: str
    read: Callable[[Mapping[str, str], str, ReadText], list[HostEntry]]
    agent: str = ""
    command: str = ""
    task_cpus: str = ""
    in_step: Callable[[Mapping[str, str]], bool] = lambda environ: False


def number(text: str, variable: str) -> int:
    """Return a number from the value of a variable; raises UsageError."""
    if not is_whole_number(text, 9):
        raise UsageError("scheduler-variable", f"{variable} has '{text}' where a number belongs", hint=INSTEAD)
    return int(text)


def file_text(path: str, variable: str, read_text: ReadText, reference: str = "scheduler-variable") -> str:
    """Return the text of the file that a variable names; raises UsageError."""
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        message = f"{variable}='{path}' cannot be read: {reason_of(error)}"
        raise UsageError(reference, message, hint=INSTEAD) from error


def name_per_slot(environ: Mapping[str, str], variable: str, read_text: ReadText) -> list[HostEntry]:
    """Read a file that lists a host once per slot."""
    path = environ[variable]
    return parse_hostfile(file_text(path, variable, read_text), f"{variable}={path}")
