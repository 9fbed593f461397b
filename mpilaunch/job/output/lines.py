"""Whole lines out of blocks of bytes.

Pure, and at memory speed: nothing here loops over lines or bytes. A line longer than the limit is broken there, so that one
rank without newlines cannot fill the head.
"""

from __future__ import annotations

LONGEST_LINE = 1 << 20
"""Bytes after which a line is broken."""


class LineJoiner:
    """Join the blocks of one stream into whole lines.

    Attributes:
        tail: the last line, as long as it has no newline.
    """

    __slots__ = ("_longest", "tail")

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self.tail = b""

    def feed(self, block: bytes) -> bytes:
        """Take a block; return the lines that are complete now, each with its newline."""
        cut = block.rfind(b"\n") + 1
        if not cut:
            self.tail += block
            return self.finish() if len(self.tail) > self._longest else b""
        lines = self.tail + block[:cut]
        self.tail = block[cut:]
        return lines

    def finish(self) -> bytes:
        """Return the last line at the end of the stream, with a newline."""
        line, self.tail = self.tail, b""
        return line + b"\n" if line else b""


def tag_lines(lines: bytes, prefix: bytes) -> bytes:
    """Put `prefix` before each line of `lines`, which ends with a newline."""
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n" if prefix else lines


def as_shown(lines: bytes) -> bytes:
    """Return lines as a terminal would have left them: of a progress bar that was drawn over and over, the last drawing.

    Without this, the carriage returns of one rank would draw over the tag and over the lines of another. Lines that end
    with a carriage return and a newline lose the carriage return.
    """
    if b"\r" not in lines:
        return lines
    shown = []
    # Only blocks that hold a carriage return come here: progress bars, a few lines a second.
    for line in lines.split(b"\n"):
        shown.append(line.rstrip(b"\r").rpartition(b"\r")[2])
    return b"\n".join(shown)
