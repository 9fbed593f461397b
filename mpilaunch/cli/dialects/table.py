"""The table of all options of other launchers: looks up an option and translates it.

Pure, and loaded only if a command line needs it. docs/dialect-options.md is generated from this table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module

from mpilaunch.cli.dialects import DETECTED, MODULES, NAMES, SEPARATE
from mpilaunch.cli.dialects.rows import ACTS, NEEDLESS, REFUSED, Dialect, InvalidArgument, ReadFile, Row, Translation, words_of
from mpilaunch.cli.dialects.rows import MPI as MPI_DEFAULTS
from mpilaunch.errors import UsageError
from mpilaunch.text import is_whole_number


def of_name(name: str) -> Dialect:
    """Return a dialect by its name."""
    return import_module(f"{__package__}.{MODULES[name]}").DIALECT  # type: ignore[no-any-return]


MPI = tuple(of_name(name) for name in NAMES if name in DETECTED)


def rows_of(dialects: Iterable[Dialect]) -> tuple[Row, ...]:
    """Return each distinct row once, with the names of its dialects."""
    owners: dict[Row, frozenset[str]] = {}
    for dialect in dialects:
        for row in dialect.rows:
            owners[row] = owners.get(row, frozenset()) | {dialect.name}
    return tuple(replace(row, dialects=names) for row, names in owners.items())


@cache
def _by_flag(separate: frozenset[str]) -> dict[str, list[Row]]:
    """Return the rows of each flag, those of the MPI launchers and of these separate ones."""
    result: dict[str, list[Row]] = {}
    for row in rows_of((*MPI, *map(of_name, separate))):
        for name in row.names:
            for flag in ("-" + name, "--" + name) if len(name) > 1 else ("-" + name,):
                result.setdefault(flag, []).append(row)
    return result


def _rows(flag: str, dialects: frozenset[str]) -> list[Row]:
    """Return the rows of a flag, in which _ and - are equal; those of a separate launcher only if it is among the dialects."""
    rows = _by_flag(dialects & SEPARATE)
    return rows.get(flag) or rows.get(flag.replace("_", "-")) or rows.get("--" + flag[2:].replace("-", "_"), [])


def skip(dialect: Dialect, words: Sequence[str]) -> int:
    """Return the number of words before the options of a separate launcher: its verb, or `python -m MODULE`; 0 for none."""
    if words and words[0] in dialect.verbs:
        return 1
    if not words or not re.fullmatch(r"(?:.*/)?python[0-9.]*", words[0]):
        return 0
    place = next((place for place, word in enumerate(words[1:], start=1) if not re.fullmatch("-[uIsSEBO]+", word)), 0)
    return place + 2 if words[place] == "-m" and words[place + 1 : place + 2] and words[place + 1] in dialect.modules else 0


def split_joined(dialect: Dialect, word: str) -> list[str]:
    """Return the words of short options that are joined as getopt(3) allows: -n4 as -n=4, -lN2 as -l and -N2."""
    flag, rest = word[:2], word[2:]
    if not dialect.getopt or word.startswith("--") or not rest or not dialect.has(flag):
        return [word]
    row = next(row for row in dialect.rows if flag[1:] in row.names)
    return [f"{flag}={rest}"] if row.metavar else [flag, f"-{rest}"]


def variables(dialect: Dialect, environ: Mapping[str, str]) -> list[tuple[str, list[str], str]]:
    """Return the options that variables of a separate dialect set: flag, values and variable; "yes" or a number sets a flag."""
    named = dict(dialect.variables)
    if dialect.prefix:
        names = (max(row.names, key=len) for row in dialect.rows)
        named |= {dialect.prefix + name.upper().replace("-", "_"): f"--{name}" for name in names}
    result = []
    for variable, flag in named.items():
        row = next(row for row in dialect.rows if flag[2:] in row.names)
        if (text := environ.get(variable)) and (row.metavar or text == "yes" or (is_whole_number(text, 9) and int(text))):
            result.append((flag, [text] if row.metavar else [], variable))
    return result


def of_command(name: str) -> str | None:
    """Return the dialect of a command name; None for `mpirun` and `mpiexec`, which several launchers use."""
    return name if name in SEPARATE else next((dialect.name for dialect in MPI if name in dialect.commands), None)


def of_mark(flag: str) -> frozenset[str]:
    """Return the dialects that one of our flags indicates for `mpirun` or `mpiexec`; all if it indicates none."""
    return frozenset(dialect.name for dialect in MPI if flag in dialect.marks) or frozenset(NAMES)


def defaults(dialects: frozenset[str]) -> dict[str, tuple[str, str]]:
    """Return the defaults that all of these dialects share, by option: the value and its source."""
    common = [of_name(name).defaults.items() for name in dialects]
    shared = {name: setting for name, setting in common[0] if all((name, setting) in items for items in common)}
    if dialects & SEPARATE:
        (name,) = dialects
        return {"dialect": (name, "the name of the command"), **shared}
    return {**MPI_DEFAULTS, **shared}


def inherited(environ: Mapping[str, str]) -> dict[str, tuple[str | list[str], str]]:
    """Return the options that variables of other launchers set: the value as text, and the variable."""
    result: dict[str, tuple[str | list[str], str]] = {}
    for variable, name in (item for dialect in MPI for item in dialect.variables.items()):
        if text := environ.get(variable):
            result.setdefault(name, (text, variable))
    return result


def flags(dialects: frozenset[str]) -> list[str]:
    """Return the flags of one letter, and the long ones with two dashes, that the dialects have in addition to ours."""
    named = (flag for flag, rows in _by_flag(dialects & SEPARATE).items() if any(row.dialects & dialects for row in rows))
    return [flag for flag in named if flag.startswith("--") or len(flag) == 2]


def find(flag: str, dialects: frozenset[str], *, named: bool) -> Row | None:
    """Return the row of a flag, None if no launcher has it; raises UsageError if its meaning depends on the launcher.

    Args:
        dialects: the dialects that the command line may still be in.
        named: the user has named the dialect, so options of others are errors.
    """
    rows = _rows(flag, dialects)
    possible = [row for row in rows if row.dialects & dialects]
    if rows and not possible and named:
        message = f"option {flag} is {_owners(rows)}, but --dialect names another launcher"
        raise UsageError("option-dialect", message, hint="remove --dialect to use the options of all launchers")
    possible = possible or rows
    if len(possible) > 1 and flag.startswith("--"):
        # Only Open MPI documents its options with two dashes.
        possible = [row for row in possible if "openmpi" in row.dialects] or possible
    if len(possible) > 1:
        readings = [f"{_owners([row])}: {flag} {row.metavar}".rstrip() for row in possible]
        message = f"option {flag} means different things to different launchers"
        names = ", ".join(name for name in NAMES if any(name in row.dialects for row in possible))
        hint = f"name the launcher before it: --dialect {names}"
        raise UsageError("option-dialect", message, context=readings, hint=hint)
    return possible[0] if possible else None


def _owners(rows: Iterable[Row]) -> str:
    owners = [of_name(name).owner for name in NAMES if any(name in row.dialects for row in rows)]
    return " or ".join([*filter(None, (", ".join(owners[:-1]),)), owners[-1]])


def translate(row: Row, flag: str, values: Sequence[str], read_file: ReadFile) -> Translation:
    """Return our options for an option of another launcher and its arguments; raises UsageError."""
    if len(values) < row.words:
        values = values[0].split("=", 1)
    if row.kind == REFUSED:
        raise UsageError("option-refused", f"option {flag} is not supported", hint=row.text)
    if row.kind != ACTS:
        return Translation(notes=((f"{flag} has no effect: {row.text}", 1 if row.kind == NEEDLESS else 0),))
    if isinstance(row.means, str):
        return words_of(row.means, values)
    more: dict[str, object] = {"read_file": read_file} if row.reads else {}
    try:
        return row.means(*values, **more, **({"flag": flag} if row.flagged else {}))
    except InvalidArgument as error:
        reason, hint = error.args
        raise UsageError("option-value", f"{flag}: {reason}", hint=hint) from None


def spelling(row: Row, dialect: str = "") -> str:
    """Return an option with its arguments, as its launcher spells it: "-genv NAME VALUE", or --long for a separate one."""
    dashes = "--" if dialect in SEPARATE else "-"
    return f"{' '.join((dashes if len(name) > 1 else '-') + name for name in row.names)} {row.metavar}".rstrip()


def meaning(row: Row) -> str:
    """Return the effect of an option here, in one line."""
    if row.kind != ACTS:
        return f"{row.kind}: {row.text}"
    words = row.means if isinstance(row.means, str) else ""
    for place, name in enumerate(row.metavar.split(), start=1):
        words = words.replace(f"${place}", name)
    parts = (f"`{words}`", row.text, "for all programs" if row.everywhere else "") if words else (row.text,)
    return ", ".join(part for part in parts if part)
