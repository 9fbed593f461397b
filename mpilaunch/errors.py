"""Errors are data: a reference, what happened, where, and what to do about it.

This module imports no other mpilaunch module and prints nothing: `cli.console` renders errors, docs/errors.md lists the
references. Every exit code of mpilaunch itself is declared here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType


class ExitCode(enum.IntEnum):
    """Exit codes of mpilaunch itself; otherwise it exits with the code of the first failed rank (128 + N for signal N)."""

    OK = 0
    START_FAILED = 1
    USAGE = 2
    INTERNAL = 70
    OUTPUT_LOST = 74
    MPI_FAILED = 76
    TIMEOUT = 124
    NODE_LOST = 125


def reason_of(error: OSError | UnicodeDecodeError) -> str:
    """Return the text of an error, without the file's name, in lower case, to follow a colon."""
    return (getattr(error, "strerror", None) or str(error)).lower()


class LaunchError(Exception):
    """An error that ends a launch.

    Args:
        reference: stable name as listed in docs/errors.md, words joined by hyphens ("hostfile-slots").
        message: what happened and where (host, rank or file:line:column), one sentence without a full stop.
        context: lines shown verbatim under the message (the line of the file, the slots per node).
        hint: what to do, one sentence without a full stop.
        nodes: the nodes that did not start, if any: index in the allocation -> name.
    """

    DEFAULT_CODE = ExitCode.START_FAILED

    def __init__(
        self,
        reference: str,
        message: str,
        *,
        context: Sequence[str] = (),
        hint: str | None = None,
        exit_code: int | None = None,
        nodes: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.reference = reference
        self.message = message
        self.context = tuple(context)
        self.hint = hint
        self.exit_code = int(self.DEFAULT_CODE if exit_code is None else exit_code)
        self.nodes = nodes


class DaemonFault(Exception):
    """A bug of mpilaunch in the daemon of a node; the cause shows the lines of its traceback there."""

    def __init__(self, host: str, traceback: Sequence[str]) -> None:
        super().__init__(f"in the daemon on {host}: {traceback[-1] if traceback else 'unknown'}")
        self.__cause__ = DaemonTraceback("\n".join(traceback))


class DaemonTraceback(Exception):
    """The traceback of a daemon; shown as the text that it is."""


class UsageError(LaunchError):
    """Bad input, reported before anything is started."""

    DEFAULT_CODE = ExitCode.USAGE

    def within(self, where: str) -> UsageError:
        """Return the error with its message prefixed by `where`: a program of several, a line of a file."""
        return UsageError(self.reference, f"{where}: {self.message}", context=self.context, hint=self.hint)
