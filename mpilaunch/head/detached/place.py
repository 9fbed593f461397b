"""Where detached jobs are kept: a private directory for each, below the user's directory of states, by host and id.

Not where sockets are: XDG_RUNTIME_DIR vanishes at logout. By host, since homes are shared. It has `job` (what the job is),
`output.N` (records), `lock` (held by the process that keeps it), and at the end `end` (how it ended), and its report. A day
after its end it is removed by the next detached job and by `mpilaunch jobs`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from mpilaunch.errors import LaunchError, UsageError
from mpilaunch.head import safe_files
from mpilaunch.wire.messages import having, listed, maybe, seconds, text, whole

KEPT_SECONDS = 86_400.0
"""Seconds after its end for which a job is kept."""
LARGEST = 16 << 20
"""Bytes of `job` and `end`; a command line has two million."""
JOB, END, LOCK, REPORT = "job", "end", "lock", "report.json"
_ID = re.compile("[0-9a-f]{16}")
_CHECKS = {
    JOB: having(id=text, name=text, program=listed(text), ranks=whole, nodes=listed(text), began=seconds),
    END: having(exit_code=whole, signal=maybe(whole), ended=seconds, lost=text),
}


class Kept(NamedTuple):
    """A detached job.

    Attributes:
        folder: its directory.
        about: its `id`, `name`, `program`, `ranks`, `nodes` and when it `began`, in seconds since 1970.
        end: its `exit_code`, the `signal` that killed its mpilaunch or null, when it `ended`, and what was `lost` of its
            output; None while it runs, or where the process that kept it was killed.
        runs: it is being kept.
    """

    folder: str
    about: dict[str, Any]
    end: dict[str, Any] | None
    runs: bool

    @property
    def run_id(self) -> str:
        return str(self.about["id"])

    @property
    def seconds(self) -> float | None:
        """How long it ran, None where that is not known."""
        return None if self.end is None else float(self.end["ended"] - self.about["began"])

    @property
    def how(self) -> str:
        """How it ended."""
        if self.end is None:
            return "lost"
        return f"killed by signal {self.end['signal']}" if self.end["signal"] else f"exit code {self.end['exit_code']}"


def top() -> str:
    """Return the directory of this user's detached jobs on this host; raises OSError where there is no home for it."""
    states = os.environ.get("XDG_STATE_HOME", "")
    states = states if os.path.isabs(states) else os.path.join(os.path.expanduser("~"), ".local", "state")
    if not os.path.isabs(states):
        raise FileNotFoundError("this user has no home directory")
    return os.path.join(states, "mpilaunch", socket.gethostname().replace("/", "_"))


@contextmanager
def new(about: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Make the directory of a job; yield its path and a descriptor of it; raises UsageError. Jobs of long ago are removed."""
    all_kept()
    folder = "no place"
    try:
        folder = os.path.join(top(), about["id"])
        safe_files.make_directory(top())
        with safe_files.private_directory(folder, make=True) as directory:
            write(directory, JOB, about)
            yield folder, directory
    except OSError as error:
        hint = safe_files.hint_of(error) or "XDG_STATE_HOME names another place"
        raise UsageError("detach-place", f"--detach: {folder}: {error.strerror or error}", hint=hint) from error
    except LaunchError:  # it does not start
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write(directory: int, name: str, value: dict[str, Any]) -> None:
    """Write `job` or `end`; raises OSError."""
    safe_files.replace_in(directory, name, json.dumps(value).encode(), 0o600)


def hold(directory: int) -> int:
    """Take the lock of a job, as the process that keeps it; return its descriptor; raises OSError."""
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def is_held(directory: int) -> bool:
    """Return whether a process keeps the job."""
    with suppress(OSError):
        lock = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # two that look do not meet
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
    return False


def read(folder: str) -> Kept | None:
    """Return the job of a directory, None where it is none."""
    with suppress(OSError), safe_files.private_directory(folder) as directory:
        runs = is_held(directory)  # before its end is read, which is written while it is held
        about, end = _read(directory, JOB), _read(directory, END)
        if about is not None:
            return Kept(folder, about, end, runs and end is None)
    return None


def _read(directory: int, name: str) -> dict[str, Any] | None:
    try:
        value = json.loads(safe_files.read_own(directory, name, 0o077, LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    return value if _CHECKS[name](value) else None


def all_kept() -> list[Kept]:
    """Return the detached jobs of this user on this host, the oldest first; remove those that ended long ago."""
    found = []
    with suppress(OSError):
        for name in os.listdir(top()):
            folder = os.path.join(top(), name)
            if _ID.fullmatch(name) and (job := read(folder)) is not None:
                if not job.runs and time.time() - (job.end or job.about).get("ended", job.about["began"]) > KEPT_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)
                else:
                    found.append(job)
    return sorted(found, key=lambda job: float(job.about["began"]))


def find(name: str) -> Kept | None:
    """Return the last job with this name or id, or whose id alone begins so; None without one."""
    jobs = all_kept()
    named = [job for job in jobs if name and name in (job.run_id, job.about["name"])]
    begun = [job for job in jobs if name and job.run_id.startswith(name)]
    return named[-1] if named else begun[0] if len(begun) == 1 else None
