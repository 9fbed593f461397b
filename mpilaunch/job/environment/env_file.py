"""Env files: one NAME=VALUE a line, `export` before it if you like, quotes and comments as a shell has them.

Pure: text in, variables out. Whether a name may be set is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mpilaunch.errors import UsageError

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "$": "$", "`": "`"}


def read_env_file(source: str, text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (where it stands, name, value) of each variable in order; raises UsageError that names source, line and column."""
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        line = line.removesuffix("\r")
        statement = re.sub(r"[ \t]*(?:export[ \t]+)?", "", line, count=1)
        if not statement or statement.startswith("#"):
            continue
        start = len(line) - len(statement)
        where = f"{source}:{number}:{start + 1}"
        name, equals, _ = statement.partition("=")
        if not equals:
            hint = "write NAME=VALUE, one on a line, and '#' before a comment"
            raise UsageError("env-file", f"{where}: a line without '='", hint=hint)
        yield where, name, _value(line, start + len(name) + 1, f"{source}:{number}")


def _value(line: str, start: int, where: str) -> str:
    """Return the value that begins at `start`: 'as it is', "with escapes", or bare up to a blank and '#'."""
    quote = line[start : start + 1]
    if quote not in ("'", '"'):
        return re.split(r"[ \t]#", line[start:], maxsplit=1)[0].strip(" \t")
    value: list[str] = []
    place = start + 1
    while line[place : place + 1] != quote:
        if place >= len(line):
            raise UsageError(
                "env-file",
                f"{where}:{start + 1}: this quote is not closed on its line",
                hint='write a line break as \\n between double quotes: NAME="a\\nb"',
            )
        if quote == '"' and line[place] == "\\":
            escape = line[place : place + 2]
            if escape[1:] not in _ESCAPES:
                raise UsageError(
                    "env-file",
                    f"{where}:{place + 1}: unknown escape '{escape}' between double quotes",
                    hint="write \\\\ for a backslash, or use single quotes, which take every character as it is",
                )
            value.append(_ESCAPES[escape[1:]])
            place += 2
        else:
            value.append(line[place])
            place += 1
    if not re.fullmatch(r"[ \t]*(?:#.*)?", line[place + 1 :], re.DOTALL):
        raise UsageError("env-file", f"{where}:{place + 2}: text after the closing quote", hint="quote the whole value")
    return "".join(value)
