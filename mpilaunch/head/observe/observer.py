"""Who is told what goes on in a launch; it writes for the user, and nothing else of a launch does."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Observer(Protocol):
    """The user's side of a launch."""

    def progress(self, done: int, total: int, waiting: Collection[str]) -> None:
        """So many of `total` nodes have reported; `waiting` are the names of the others."""

    def started(self) -> None:
        """The ranks are about to run: the terminal is theirs."""

    def remark(self, text: str) -> None:
        """Say something at once: no rank runs."""

    def warned(self, text: str) -> str:
        """Return a warning as a line for stderr, with its newline."""

    def note(self, text: str) -> str:
        """Return a note as a line for stderr, with its newline; empty when notes are not wanted."""
