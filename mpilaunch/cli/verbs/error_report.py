"""The report of a command line that started no job: its error, in the file of --report as soon as that is known.

A job that has run writes its own report (`head.attempts`), so an error that is raised after that replaces it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mpilaunch.errors import LaunchError

if TYPE_CHECKING:
    from mpilaunch.job.spec import JobSpec

NEVER = frozenset({"report-file"})
"""Errors that say that the file cannot be written."""


class ErrorReport:
    """Where an error is reported; filled while the command line is read.

    Attributes:
        path: the file of --report, None when there is none or it is not known yet.
        job: the job, None before it was built.
    """

    def __init__(self) -> None:
        self.path: str | None = None
        self.job: JobSpec | None = None

    def write(self, error: LaunchError, mask: Callable[[str], str]) -> None:
        """Write the report of an error where one is wanted, its texts masked; raises LaunchError when that fails."""
        if self.path is None or error.reference in NEVER:
            return
        from mpilaunch.head.observe.report import report_of_error, write_report

        write_report(self.path, report_of_error(error, mask, self.job))
