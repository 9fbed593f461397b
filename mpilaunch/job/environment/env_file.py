"""Env files: one NAME=VALUE per line, with an optional `export`, and quotes and comments as in a shell.

Pure: text in, variables out; `forward` decides which names may be set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mpilaunch.errors import UsageError

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "$": "$", "`": "`"}


def read_env_file(source: str, text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (source:line:column, name, value) of each variable; raises UsageError."""
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        line = line.removesuffix("\r")
        statement = re.sub(r"[ \t]*(?:export[ \t]+)?", "", line, count=1)
        if not statement or statement.startswith("#"):
            continue
        start = len(line) - len(statement)
        where = f"{source}:{number}:{start + 1}"
        name, equals, _ = statement.partition("=")
        if not equals:
            hint = "write one NAME=VALUE per line, and '#' before a comment"
            raise UsageError("env-file", f"{where}: a line without '='", hint=hint)
        yield where, name, _value(line, start + len(name) + 1, f"{source}:{number}")


def _value(line: str, start: int, where: str) -> str:
    """Return the value that begins at `start`: 'literal', "with escapes", or bare up to a blank and '#'."""
    quote = line[start : start + 1]
    if quote not in ("'", '"'):
        return re.split(r"[ \t]#", line[start:], maxsplit=1)[0].strip(" \t")
    value: list[str] = []
    position = start + 1
    while line[position : position + 1] != quote:
        if position >= len(line):
            hint = 'write a line break as \\n between double quotes: NAME="a\\nb"'
            raise UsageError("env-file", f"{where}:{start + 1}: this quote is not closed on its line", hint=hint)
        if quote == '"' and line[position] == "\\":
            escape = line[position : position + 2]
            if escape[1:] not in _ESCAPES:
                hint = "write \\\\ for a backslash, or use single quotes, which take every character as it is"
                message = f"{where}:{position + 1}: unknown escape '{escape}' between double quotes"
                raise UsageError("env-file", message, hint=hint)
            value.append(_ESCAPES[escape[1:]])
            position += 2
        else:
            value.append(line[position])
            position += 1
    if not re.fullmatch(r"[ \t]*(?:#.*)?", line[position + 1 :], re.DOTALL):
        raise UsageError("env-file", f"{where}:{position + 2}: text after the closing quote", hint="quote the whole value")
    return "".join(value)
