"""A terminal of its own for a program, whose keys and end it feels."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.launching import environment


class Terminal:
    """A terminal, seen from the side of its user."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process, self._descriptor = process, descriptor

    def type(self, keys: bytes) -> None:
        os.write(self._descriptor, keys)

    def read_until(self, words: bytes, count: int = 1) -> bytes:
        """Return what is shown, until these words have come so often."""
        shown = b""
        while shown.count(words) < count:
            assert select.select([self._descriptor], [], [], 30)[0], shown
            shown += os.read(self._descriptor, 4096)
        return shown

    def close(self) -> None:
        """Close it, as the window of an emulator or the connection of sshd."""
        os.close(self._descriptor)
        self._descriptor = -1

    def closed(self) -> bool:
        return self._descriptor < 0


@contextlib.contextmanager
def terminal(*argv: str, cwd: Path) -> Iterator[Terminal]:
    """Run a program on a terminal, as the leader of its session."""
    ours, theirs = pty.openpty()
    command: Sequence[str] = ["setsid", "--ctty", *argv]
    with subprocess.Popen(command, cwd=cwd, env=environment(), stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        one = Terminal(process, ours)
        try:
            yield one
        finally:
            process.kill()
            if not one.closed():
                one.close()
