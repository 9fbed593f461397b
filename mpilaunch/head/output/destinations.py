"""Prepare the places a job writes to (output directory, checkpoint directory, report) before anything is started.

A bad path must fail here, with the option that named it, and not after hours of computing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mpilaunch.errors import UsageError
from mpilaunch.head import safe_files

if TYPE_CHECKING:
    from mpilaunch.job.spec import JobSpec  # `begin` imports this module before a job is read


def prepare_destinations(job: JobSpec) -> None:
    """Make the directories a job writes to and check that its report can be written; raises UsageError."""
    _prepare(safe_files.make_directory, job.output.directory, "--output-filename", "output-directory")
    _prepare(safe_files.make_new_directory, job.checkpoint_directory, "--checkpoint-prefix", "checkpoint-prefix")
    _prepare(safe_files.check_file, job.report_file, "--report", "report-file")


def _prepare(action: Callable[[str], None], path: str | None, option: str, reference: str) -> None:
    if path is None:
        return
    try:
        action(path)
    except OSError as error:
        hint = safe_files.hint_of(error)
        if hint is None and reference == "output-directory" and isinstance(error, (NotADirectoryError, FileExistsError)):
            hint = "it names a directory for a file of each rank; --output-file FILE names the file"
        raise UsageError(reference, f"{option} {path}: {error.strerror}", hint=hint) from error
