"""The live line: on a terminal, the unfinished line of one rank, below the whole lines of all ranks; without one, a status.

Progress bars and prompts have no newline and would otherwise stay invisible. The line of the stream that wrote last is shown;
it is erased before whole lines are written and drawn again after them. A file or a pipe never gets one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

from mpilaunch.job.output.lines import RESET, as_shown

ERASE = b"\r\x1b[K"
PAUSE = 0.1
"""Seconds between two redraws, and before the first one: most lines are finished sooner."""


class LiveLine:
    """The live line of the terminal at a descriptor; `draw` writes bytes in order with all other output."""

    def __init__(self, descriptor: int, draw: Callable[[bytes], None]) -> None:
        self._descriptor, self._draw = descriptor, draw
        self._owner: object = None
        self._prefix, self._drawn = b"", False
        self._tail: bytes | bytearray = b""
        self._status = b""
        self._timer: asyncio.TimerHandle | None = None

    def show(self, owner: object, prefix: bytes, tail: bytes | bytearray) -> None:
        """Show a stream's unfinished line, read when it is drawn; an empty `tail` removes the line if it is this stream's."""
        if tail:
            self._owner, self._prefix, self._tail = owner, prefix, tail
        elif owner is self._owner:
            self._owner, self._tail = None, b""
        if self._tail or self._drawn:
            self._redraw_soon()

    def show_status(self, text: bytes) -> None:
        """Show a text of our own wherever no stream has an unfinished line; an empty one removes it."""
        if text != self._status:
            self._status = text
            self._redraw_soon()

    def above(self, lines: bytes) -> bytes:
        """Return the bytes that write whole lines above the live line."""
        if not self._drawn:
            return lines
        self._drawn = False
        self._redraw_soon()
        return ERASE + lines

    def close(self) -> None:
        """Erase the line for good."""
        self._tail = self._status = b""
        self._redraw()

    def _redraw_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE, self._redraw)

    def _redraw(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._tail or self._status or self._drawn:
            columns = 0
            with suppress(OSError):
                columns = os.get_terminal_size(self._descriptor).columns
            # A line that wraps could not be erased, so it is cut to the terminal's width.
            text = self._prefix + as_shown(bytes(self._tail)) if self._tail else self._status
            shown = text[: (columns or 80) - 1]
            self._draw(ERASE + shown + (RESET if b"\x1b" in shown else b""))
            self._drawn = bool(text)
