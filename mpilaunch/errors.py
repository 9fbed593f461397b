"""Errors are data: a reference, what happened, where, and what to do about it.

This module imports nothing of ours and prints nothing. `console` is the one renderer; docs/errors.md lists the references.
Every exit code that mpilaunch itself gives is declared here, once.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence


class ExitCode(enum.IntEnum):
    """Exit codes of mpilaunch itself; otherwise it exits as the first rank that failed (128 + N for signal N)."""

    OK = 0
    START_FAILED = 1
    USAGE = 2
    INTERNAL = 70
    OUTPUT_LOST = 74
    MPI_FAILED = 76
    TIMEOUT = 124
    NODE_LOST = 125


def reason_of(error: OSError) -> str:
    """Return what the system says of an error, to stand behind a colon."""
    return (error.strerror or str(error)).lower()


class LaunchError(Exception):
    """Something that ends a launch, told so that the reader can act on it.

    Args:
        reference: short stable name, words joined by hyphens, as listed in docs/errors.md ("hostfile-slots").
        message: what happened and where, one sentence without a full stop, with host, rank or file:line:column.
        context: lines shown under the message as they are (the line of the file, the slots counted per node).
        hint: what to do, one sentence without a full stop.
        exit_code: what mpilaunch exits with.
        nodes: places in the allocation of the nodes that did not start, when that is what happened.
    """

    def __init__(
        self,
        reference: str,
        message: str,
        *,
        context: Sequence[str] = (),
        hint: str | None = None,
        exit_code: int = ExitCode.START_FAILED,
        nodes: Sequence[int] = (),
    ) -> None:
        super().__init__(message)
        self.reference = reference
        self.message = message
        self.context = tuple(context)
        self.hint = hint
        self.exit_code = int(exit_code)
        self.nodes = tuple(nodes)


class UsageError(LaunchError):
    """Bad input: found before anything was started; exit code 2."""

    def __init__(self, reference: str, message: str, *, context: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__(reference, message, context=context, hint=hint, exit_code=ExitCode.USAGE)

    def within(self, where: str) -> UsageError:
        """Return the error with the place before its message: a program of several, a line of a file."""
        return UsageError(self.reference, f"{where}: {self.message}", context=self.context, hint=self.hint)
