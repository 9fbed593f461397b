"""What the table of a launcher is made of: its rows, and what one option means here.

Pure. `acts`, `needless`, `ignored` and `refused` make the rows; the functions that rows name return a `Translation`, or raise
`Wrong` with what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

ReadFile = Callable[[str, str], str]
"""Path, and what the file is for the user, to its text; raises UsageError."""

ACTS, NEEDLESS, IGNORED, REFUSED = "acts", "needless", "ignored", "refused"


class Wrong(Exception):
    """An argument that the option does not take; `hint` says what it takes."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Translation:
    """What an option means.

    Attributes:
        words: options of ours.
        notes: texts for the user, each with a level of verbosity.
        agent: parts of the remote agent, which several options name together; see `hydra.agent_template`.
        weak: flags among the words that give way to every other setting.
    """

    words: tuple[str, ...] = ()
    notes: tuple[tuple[str, int], ...] = ()
    agent: Mapping[str, str] = field(default_factory=dict)
    weak: frozenset[str] = frozenset()

    def __add__(self, other: Translation) -> Translation:
        return Translation(
            self.words + other.words, self.notes + other.notes, {**self.agent, **other.agent}, self.weak | other.weak
        )


Means = str | Callable[[Sequence[str], ReadFile], Translation]


@dataclass(frozen=True)
class Row:
    """One option of a launcher.

    Attributes:
        names: its spellings without dashes; it is understood with one dash and, but for single letters, with two.
        metavar: a word for each of its arguments.
        kind: ACTS, NEEDLESS (what it asks for is so anyway), IGNORED (it is not done, and a note says so) or REFUSED.
        means: words of ours, with $1 and $2 for the arguments, or the function that makes them.
        text: what it means where that is not words of ours, why it changes nothing, or what to use instead.
        everywhere: it is for all programs of the job, though the option of ours would be for one.
        weak: every other setting wins over it.
        joined: two arguments may be one, with "=" between them.
        dialects: the launchers that have it; `table` fills it in.
    """

    names: tuple[str, ...]
    metavar: str
    kind: str
    means: Means = ""
    text: str = ""
    everywhere: bool = False
    weak: bool = False
    joined: bool = False
    dialects: frozenset[str] = frozenset()

    @property
    def words(self) -> int:
        """How many arguments it takes."""
        return len(self.metavar.split())


@dataclass(frozen=True)
class Dialect:
    """A launcher whose command lines mpilaunch understands.

    Attributes:
        name: the word for it in --dialect.
        title: its name in a heading of the help.
        owner: its name as the owner of an option.
        rows: its options that are not spelled as ours.
        commands: names of its commands; a link of this name is mpilaunch with this dialect.
        marks: flags of ours that only its users write, under the names mpirun and mpiexec.
        defaults: options whose default differs: the value, and its source.
        variables: its environment variables that are safe to act on, and the option of ours that each sets: an operator of a
            cluster or a container image set them for that launcher. One that changes how a job runs, and not only where and
            how its nodes are reached, is left alone; hostfiles and agents are read by `operators`.
    """

    name: str
    title: str
    owner: str
    rows: tuple[Row, ...]
    commands: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    defaults: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def acts(names: str, metavar: str, means: Means, text: str = "", **more: bool) -> Row:
    """Return the row of an option that has an effect."""
    return Row(tuple(names.split()), metavar, ACTS, means, text, **more)  # type: ignore[arg-type]


def needless(names: str, metavar: str, why: str) -> Row:
    """Return the row of an option that asks for what is so anyway."""
    return Row(tuple(names.split()), metavar, NEEDLESS, "", why)


def ignored(names: str, metavar: str, why: str) -> Row:
    """Return the row of an option that changes nothing, which a note says."""
    return Row(tuple(names.split()), metavar, IGNORED, "", why)


def refused(names: str, metavar: str, instead: str) -> Row:
    """Return the row of an option that is an error; `instead` says what to use."""
    return Row(tuple(names.split()), metavar, REFUSED, "", instead)


def words_of(template: str, values: Sequence[str] = ()) -> Translation:
    """Return the words of a template, with $1 and $2 replaced by the values."""
    return Translation(tuple(re.sub(r"\$([12])", lambda match: values[int(match[1]) - 1], word) for word in template.split()))


def for_each(flag: str, names: str) -> Iterator[str]:
    """Return the flag before each name of a list with commas."""
    for name in names.split(","):
        if name.strip():
            yield from (flag, name.strip())


def fill_pattern(pattern: str, fields: Mapping[str, str]) -> str:
    """Return a template of ours for a pattern with fields like %r."""

    def replaced(match: re.Match[str]) -> str:
        if match[0] in "{}":
            return match[0] * 2
        if match[1] not in fields:
            raise Wrong(f"'{match[0]}' in '{pattern}' is no field", "the fields are " + " ".join(f"%{name}" for name in fields))
        return fields[match[1]]

    return re.sub("%(.?)|[{}]", replaced, pattern)
