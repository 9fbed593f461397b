"""App files: the programs of a job, one on each line with its options, as mpirun's --app and mpiexec's -configfile read them.

Pure. A line is what would stand between two ":" of a command line. Words may be quoted as for a shell, "#" begins a comment,
and a line that ends in a backslash goes on in the next.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mpilaunch.errors import UsageError


def lines_of(text: str, source: str) -> Iterator[tuple[str, list[str]]]:
    """Return the words of each line that has any, and where it begins ("apps.txt:3"); raises UsageError "app-file"."""
    pending, begin = "", 0
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        begin = begin if pending else number
        pending += line.rstrip()
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        try:
            words = shlex.split(pending, comments=True)
        except ValueError as error:
            told = f"{source}:{begin}: {str(error).lower()}"
            raise UsageError("app-file", told, context=[pending], hint="quote words as for a shell") from None
        pending = ""
        if words:
            yield f"{source}:{begin}", words
