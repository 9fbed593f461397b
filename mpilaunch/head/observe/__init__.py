"""What a launch reports: progress, timeline, explanation of a failure, JSON report. Nothing here changes what a launch does.

`Observer` is the interface through which a launch reports to the user; `cli.console` implements it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Observer(Protocol):
    """Receives progress, warnings and notes of a launch."""

    def progress(self, done: int, total: int, waiting: Collection[str]) -> None:
        """Report that `done` of `total` nodes have started; `waiting` holds the names of the others."""

    def started(self) -> None:
        """Leave the terminal to the ranks, which are about to run."""

    def remark(self, text: str) -> None:
        """Print a message at once; called only while no rank runs."""

    def warned(self, text: str) -> str:
        """Return a warning as a line for stderr, with its newline."""

    def note(self, text: str) -> str:
        """Return a note as a line for stderr, with its newline; empty when the user has turned notes off."""
