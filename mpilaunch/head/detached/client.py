"""What other processes do with a detached job: find it, read its output, wait for its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from mpilaunch.errors import LaunchError, UsageError
from mpilaunch.head import safe_files
from mpilaunch.head.detached import place, segments
from mpilaunch.head.detached.records import BrokenRecord, Record


def find(name: str) -> place.Kept:
    """Return the last detached job with this name or id; raises UsageError."""
    job = place.find(name)
    if job is None:
        hint = "mpilaunch jobs lists them; a job is kept if it is started with --detach"
        raise UsageError("job-unknown", f"no detached job '{name}' of yours is kept on this machine", hint=hint)
    return job


def output(job: place.Kept, dropped: Callable[[], None], *, follow: bool, new: bool = False) -> Iterator[Record]:
    """Yield the kept output; raises LaunchError.

    Args:
        dropped: called where output is missing that was removed.
        follow: and what comes until the job ends.
        new: of what is there only the end.
    """
    try:
        with safe_files.private_directory(job.folder) as directory:
            for records in segments.read(directory, partial(_has_ended, job) if follow else None, dropped, new=new):
                yield from records
    except (OSError, BrokenRecord) as error:
        message = f"the output of job {job.run_id} in {job.folder} cannot be read: {error}"
        raise LaunchError("job-unreadable", message) from error


def wait(job: place.Kept) -> int:
    """Wait for the end of a job; return its exit code; raises LaunchError where its mpilaunch was killed."""
    while not _has_ended(job):
        time.sleep(segments.LOOK)
    now = place.read(job.folder)
    hint = "the daemons on its nodes end the ranks of an mpilaunch that has gone"
    if now is None or now.end is None:
        message = f"the process that kept job {job.run_id} was killed: how the job ended is not known"
        raise LaunchError("job-gone", message, hint=hint)
    code = int(now.end["exit_code"])
    if now.end["signal"]:
        raise LaunchError("job-gone", f"the mpilaunch of job {job.run_id} was {now.how}", hint=hint, exit_code=code)
    return code


def _has_ended(job: place.Kept) -> bool:
    now = place.read(job.folder)
    return now is None or not now.runs
