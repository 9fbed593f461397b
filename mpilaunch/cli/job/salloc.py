"""`--slurm 'nodes=4,gpus=8,time=1h'`: ask Slurm for the nodes of a job, by salloc, which runs this mpilaunch within them.

salloc takes this process's place: it shows the queue, and gives the nodes back when its command ends or it is interrupted. If
it is killed, the mpilaunch within ends its job, as at SIGTERM, and gives the nodes back.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from mpilaunch.errors import LaunchError, UsageError
from mpilaunch.job.settings import Layer, Settings
from mpilaunch.text import did_you_mean, is_whole_number, seconds_of
from mpilaunch_agents.child import find_program

ALLOCATED = "MPILAUNCH_ALLOCATED"
"""The variable with the process of the salloc within which an mpilaunch runs."""
INSIDE = "SLURM_JOB_ID"
GIVE_BACK_SECONDS = 10.0
PR_SET_PDEATHSIG = 1
_AS_SALLOC = (
    *("nodes", "cpus-per-task", "gpus", "gpus-per-node", "mem", "time", "partition", "account", "qos", "constraint"),
    *("reservation", "nodelist", "exclude", "licenses"),
)
OPTIONS = {name: f"--{name}" for name in _AS_SALLOC} | {
    "ranks": "--ntasks", "ranks-per-node": "--ntasks-per-node", "name": "--job-name", "exclusive": "--exclusive"
}  # fmt: skip
"""What a request may say -> the option of salloc; only the last one has no value."""
_VALUE = re.compile(r"[\w.,:/@+*&|()\[\]=-]{1,1000}", re.ASCII)
_OTHERS = ("host", "hostfile", "slot-map", "detach", "node-rank", "independent")
"""Options that cannot be used with it."""


def options_of(request: str, ranks: int | None) -> list[str]:
    """Return the options of salloc for a request; raises UsageError. Pure.

    Without a number of ranks in the request there are as many as -np says, or one for each GPU.

    Args:
        request: `nodes=4,gpus=8,time=1h`; a comma in a value stands in brackets: `nodelist=n[1,3]`.
    """
    values: dict[str, str] = {}
    for item in re.split(r",(?![^\[]*\])", request):
        name, equals, value = item.strip().partition("=")
        if name not in OPTIONS:
            hint = f"a request names {', '.join(OPTIONS)}"
            raise _refused(f"'{name}' is not known{did_you_mean(name, OPTIONS)}", hint)
        if bool(equals) == (name == "exclusive") or (equals and not _VALUE.fullmatch(value)):
            raise _refused(f"'{item.strip()}' is not {name if name == 'exclusive' else f'{name}=VALUE'}")
        values[name] = _time(value) if name == "time" else value
    if not {"nodes", "ranks", "nodelist"} & values.keys() and ranks is None:
        raise _refused("it says neither nodes nor ranks", "write nodes=N, or ranks=N, or -np N")
    if not {"ranks", "ranks-per-node"} & values.keys():
        number = values.get("gpus", "").rpartition(":")[2]
        if ranks is not None or is_whole_number(number, 6):
            values["ranks"] = str(ranks or number)
    return [OPTIONS[name] + (f"={value}" if value else "") for name, value in values.items()]


def _time(text: str) -> str:
    """Return a time as Slurm reads it: minutes, rounded up, or what it writes itself, `1-12:00:00`."""
    if re.fullmatch(r"[0-9]{1,4}(-[0-9]{1,2})?(:[0-9]{1,2}){0,2}", text) and not is_whole_number(text, 9):
        return text
    seconds = seconds_of(text)
    if not seconds or is_whole_number(text, 9):  # a number alone would be seconds here, and minutes there
        raise _refused(f"time={text} is not a time", "write 30m, 1h, 2d, or as Slurm does, 1:30:00")
    return str(-(-int(seconds) // 60))


def _refused(reason: str, hint: str | None = None) -> UsageError:
    return UsageError("slurm-request", f"--slurm: {reason}", hint=hint)


def command(settings: Settings, environ: Mapping[str, str], arguments: Sequence[str]) -> list[str] | None:
    """Return the command line that runs this one within an allocation; None where there is none to ask for; raises UsageError.

    Args:
        arguments: those of this process, its program first.
    """
    if settings["slurm"] is None or environ.get(INSIDE):
        return None
    if other := next((name for name in _OTHERS if settings.layer(name) == Layer.COMMAND_LINE), None):
        if settings.layer("slurm") < Layer.COMMAND_LINE:
            return None  # a file or a variable asks for what this line has no use for
        raise UsageError("option-conflict", f"--slurm and --{other} cannot be used together", hint="leave one out")
    options = options_of(settings["slurm"], settings["np"])
    program = find_program("salloc", environ.get("PATH", ""))
    if program is None:
        raise UsageError("slurm-request", "--slurm: salloc is not installed here", hint="use it on a login node of a cluster")
    named = os.access(arguments[0], os.X_OK) and not arguments[0].endswith(".py")
    own = [os.path.abspath(arguments[0])] if named else [sys.executable, "-m", "mpilaunch"]
    return [program, *options, "--", *own, *arguments[1:]]


def replace_by(argv: Sequence[str]) -> NoReturn:
    """Become salloc; raises LaunchError."""
    os.environ[ALLOCATED] = str(os.getpid())
    try:
        os.execv(argv[0], list(argv))
    except OSError as error:
        raise LaunchError("slurm-request", f"--slurm: {argv[0]}: {error.strerror}") from error


@contextmanager
def given_back(environ: Mapping[str, str]) -> Iterator[None]:
    """End with the salloc around this process, and give its job back where it was killed."""
    salloc, job = environ.get(ALLOCATED, ""), environ.get(INSIDE)
    if not (job and is_whole_number(salloc, 9)):
        yield
        return
    import ctypes  # takes 5 ms, as subprocess below
    import subprocess

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    try:
        yield
    finally:
        if os.getppid() != int(salloc):
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(["scancel", job], stdin=subprocess.DEVNULL, timeout=GIVE_BACK_SECONDS, check=False)
