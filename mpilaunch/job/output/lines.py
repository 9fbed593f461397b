"""Whole lines out of blocks of bytes, each with its tag before it.

Pure, and at memory speed: no Python code runs per line or byte, except for progress bars on a terminal. A line longer than
the limit is broken there, so that one rank without newlines cannot fill the head.
"""

from __future__ import annotations

import re

RESET = b"\x1b[0m"
"""The control sequence that ends every colour and text attribute (SGR 0)."""

_OPEN_COLOUR = re.compile(rb"(\x1b\[(?![0;]*m)[0-9;:]*m[^\n\x1b]*(?:\x1b(?!\[[0-9;:]*m)[^\n\x1b]*)*)\n")
"""The end of a line from its last SGR sequence on, where that sequence is not a reset."""
_REDRAWN = re.compile(rb"\r(?=[^\r\n])")
"""The last of the carriage returns after which the line is drawn over."""

LONGEST_LINE = 1 << 20
"""Bytes after which a line is broken."""


class LineJoiner:
    """Join the blocks of one stream into whole lines; `tail` is the last line, as long as it has no newline."""

    __slots__ = ("_longest", "tail")

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self.tail = bytearray()  # a rank may write its line byte by byte

    def feed(self, block: bytes) -> bytes:
        """Take a block; return the lines that are complete now, each with its newline."""
        cut = block.rfind(b"\n") + 1
        if not cut:
            self.tail += block
            return self.finish() if len(self.tail) > self._longest else b""
        lines = b"".join((self.tail, memoryview(block)[:cut]))
        self.tail = bytearray(memoryview(block)[cut:])
        return lines

    def finish(self) -> bytes:
        """Return the last line at the end of the stream, with a newline."""
        line = bytes(self.tail)
        self.tail.clear()
        return line + b"\n" if line else b""


def tag_lines(lines: bytes, prefix: bytes) -> bytes:
    """Put `prefix` before each line of `lines`, which ends with a newline, and again where a carriage return would hide it."""
    if not prefix:
        return lines
    if b"\r" in lines:
        lines = _REDRAWN.sub(rb"\g<0>" + prefix.replace(b"\\", rb"\\"), lines)
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"


def close_colours(lines: bytes) -> bytes:
    """Add a reset to each line that leaves a colour or another text attribute on: the next line may be another rank's."""
    return _OPEN_COLOUR.sub(rb"\1" + RESET + b"\n", lines) if b"\x1b" in lines else lines


def as_shown(lines: bytes) -> bytes:
    """Return lines as a terminal would have left them: of a progress bar that was drawn over and over, the last drawing.

    The carriage returns of one rank would otherwise draw over the tag and over the lines of another.
    """
    if b"\r" not in lines:
        return lines
    # Only blocks with a carriage return come here: progress bars, a few lines a second.
    return b"\n".join(line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines.split(b"\n"))
