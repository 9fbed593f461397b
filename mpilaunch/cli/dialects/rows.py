"""The rows of a launcher's table of options, and the translation of one option.

Pure. `acts`, `needless`, `ignored` and `refused` make the rows. The functions of rows take the arguments of the option, and
return a `Translation` or raise `InvalidArgument`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from mpilaunch.text import escape_braces, is_whole_number

ReadFile = Callable[[str, str], str]
"""Reads a file, given its path and a name of its purpose for error messages; raises UsageError."""

ACTS, NEEDLESS, IGNORED, REFUSED = "acts", "not needed", "does nothing", "not supported"
"""Kinds of rows; docs/dialect-options.md and the help print those of options without effect."""


DEBUGGER = "start the debugger as the program: xterm -e gdb --args ./a, or attach it to a running rank"
"""What to use instead of an option that starts a debugger."""
STAGE = "put the files on a shared file system, or copy them to the nodes first"
"""What to do instead of copying files to the nodes."""


class InvalidArgument(Exception):
    """An invalid argument of an option: the reason, and a hint that suggests a valid one."""


@dataclass(frozen=True)
class Translation:
    """The meaning of an option of another launcher.

    Attributes:
        words: our options.
        notes: messages for the user, each with its verbosity level.
        agent: parts of the remote agent, which several options describe together; see `agent_template`.
        parts: values for the `finish` of the dialect; a key that ends with a comma collects its values, separated by commas.
        weak: the flags among the words that every other setting overrides.
        programs: for `finish` of a dialect: the ranks and the words of each program, where they are several.
        text: is printed instead of running a job.
    """

    words: tuple[str, ...] = ()
    notes: tuple[tuple[str, int], ...] = ()
    agent: Mapping[str, str] = field(default_factory=dict)
    weak: frozenset[str] = frozenset()
    parts: Mapping[str, str] = field(default_factory=dict)
    programs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    text: str = ""

    def __add__(self, other: Translation) -> Translation:
        return Translation(
            self.words + other.words,
            self.notes + other.notes,
            {**self.agent, **other.agent},
            self.weak | other.weak,
            other.parts_after(self.parts),
            self.programs + other.programs,
            self.text or other.text,
        )

    def parts_after(self, earlier: Mapping[str, str]) -> dict[str, str]:
        """Return the parts together with those of earlier options."""
        added = {key: f"{earlier[key]},{value}" for key, value in self.parts.items() if key.endswith(",") and key in earlier}
        return {**earlier, **self.parts, **added}


_OF_LAUNCHERS = {"fork": "local", "slurm": "slurm", "sge": "gridengine"}
"""Launchers that are agents of ours."""


def agent_template(parts: Mapping[str, str]) -> str | None:
    """Return the agent that the parts describe, None for the default agent.

    Args:
        parts: `launcher` ("ssh", "rsh", "fork", "slurm" or "sge"), the `program` to use instead, its `arguments`, and `flags`
            that its dialect puts before the host.
    """
    name = parts.get("launcher", "ssh")
    if name in _OF_LAUNCHERS:
        return _OF_LAUNCHERS[name]
    program, arguments = parts.get("program", name), parts.get("arguments", "")
    if program == "ssh" and not arguments.strip():
        return None
    words = " ".join(word for word in (program, arguments, parts.get("flags", "") if name == "ssh" else "") if word)
    return escape_braces(words) + " {host} {command}"


Means = str | Callable[..., Translation]


@dataclass(frozen=True)
class Row:
    """One option of a launcher.

    Attributes:
        names: its names without dashes; it may have one dash or, unless it is a single letter, two.
        metavar: the names of its arguments; an argument in brackets may be missing, and stands only behind "=".
        kind: ACTS, NEEDLESS (mpilaunch always behaves so), IGNORED (a note says that it has no effect) or REFUSED.
        means: our options, with $1 and $2 for the arguments, or a function that returns them.
        text: the meaning where `means` is a function, the reason for having no effect, or the alternative.
        everywhere: it applies to all programs of the job, unlike our option.
        weak: every other setting overrides it.
        joined: two arguments may be one word, joined by "=".
        reads: the function reads files, by its argument `read_file`.
        flagged: the function takes the option as written, by its argument `flag`.
        dialects: the launchers that have it; set by `table`.
    """

    names: tuple[str, ...]
    metavar: str
    kind: str
    means: Means = ""
    text: str = ""
    everywhere: bool = False
    weak: bool = False
    joined: bool = False
    reads: bool = False
    flagged: bool = False
    dialects: frozenset[str] = frozenset()

    @property
    def words(self) -> int:
        """The number of its arguments without one that may be missing."""
        return 0 if self.metavar.startswith("[") else len(self.metavar.split())

    def needs_more(self, values: Sequence[str]) -> bool:
        """Return whether arguments are missing; "NAME=VALUE" is two of an option that joins them."""
        return len(values) < self.words and not (self.joined and values and "=" in values[0])

    def usage(self, flag: str, values: Sequence[str]) -> str:
        """Return how to write the option, with the arguments that are known: "-genv A VALUE or -genv A=VALUE"."""
        words = [*values, *self.metavar.split()[len(values) :]]
        return f"{flag} {' '.join(words)}" + (f" or {flag} {'='.join(words)}" if self.joined else "")


class Surroundings(NamedTuple):
    """What the `finish` of a dialect needs.

    Attributes:
        names_hosts: the command line names hosts by an option of ours.
        environ, read_file: the head's variables, and a reader of files.
        programs: the number of programs on the command line.
    """

    names_hosts: bool
    environ: Mapping[str, str]
    read_file: ReadFile
    programs: int = 1


Finish = Callable[[Mapping[str, str], Sequence[str], Surroundings], tuple[Translation, list[str]]]


@dataclass(frozen=True)
class Dialect:
    """A launcher whose command lines mpilaunch accepts.

    Attributes:
        name: its name for --dialect.
        title: its name in the heading of the help.
        owner: its possessive form, for messages.
        rows: its options that are not the same as ours.
        commands: command names of an MPI launcher; under such a name, mpilaunch uses this dialect. That of a separate one is
            its name.
        marks: our flags that, under the names mpirun and mpiexec, only its users write.
        defaults: options whose default differs: the value and its source. Each MPI launcher has MPI among them.
        variables: environment variables of an MPI launcher that mpilaunch follows, and our option that each sets. Cluster
            operators and container images set them for that launcher, so they must only affect how nodes are reached, never
            how a job runs. `hosts.kubernetes` reads those of hostfiles and agents. For a separate dialect, its own option that
            each sets.
        prefix: its variables PREFIX_OPTION set its options, for a separate dialect only.
        modules: modules by which Python starts a separate launcher: `python -m MODULE`.
        verbs: words after a separate launcher's name: "launch" of `accelerate launch`. The part `started` has the one used.
        getopt: short options of a separate launcher may be joined, with a value or with each other: -n4, -lN2.
        colon: a word ":" separates the programs of a separate launcher, and each has parts of its own.
        usage: how a separate launcher is called, for its help.
        finish: for a separate dialect: returns the options that the parts of its rows make together, and the program to run.
    """

    name: str
    title: str
    owner: str
    rows: tuple[Row, ...]
    commands: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    defaults: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    modules: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    getopt: bool = False
    colon: bool = False
    usage: str = ""
    finish: Finish | None = None

    def has(self, flag: str) -> bool:
        """Return whether it has an option, with one dash or two, in which _ may stand for -."""
        name = flag[1:] if len(flag) == 2 else flag.removeprefix("-").removeprefix("-")
        names = {known.replace("_", "-") for row in self.rows for known in row.names}
        return (len(flag) == 2 or len(name) > 1) and name.replace("_", "-") in names


MPI = {
    "dialect": ("mpi", "its options, or the name of the command"),
    "stdout": ("auto", "default of mpirun and mpiexec"),
    "default-slots": ("cores", "Open MPI's default"),
    "bind-order": ("numa", "Open MPI's default"),
}
"""Defaults under the name of an MPI launcher, or after one of its options; Hydra's has others."""


def acts(names: str, metavar: str, means: Means, text: str = "", **more: bool) -> Row:
    """Return the row of an option that has an effect."""
    return Row(tuple(names.split()), metavar, ACTS, means, text, **more)  # type: ignore[arg-type]


def _without_effect(kind: str, names: str, metavar: str, text: str) -> Row:
    return Row(tuple(names.split()), metavar, kind, text=text)


def keep(key: str, *values: str) -> Translation:
    """Keep the value of an option that counts together with others, for `finish`."""
    return Translation(parts={key: values[0] if values else "yes"})


def part(names: str, metavar: str, text: str, key: str = "") -> Row:
    """Return the row of an option whose value `finish` finds under this key, or its first name."""
    return acts(names, metavar, partial(keep, key or names.split()[0]), text)


needless = partial(_without_effect, NEEDLESS)
ignored = partial(_without_effect, IGNORED)
refused = partial(_without_effect, REFUSED)


def words_of(template: str, values: Sequence[str] = ()) -> Translation:
    """Return the options of a template, with $1 and $2 replaced by the values."""
    return Translation(tuple(re.sub(r"\$([12])", lambda match: values[int(match[1]) - 1], word) for word in template.split()))


def weak(flag: str, *values: str) -> Translation:
    """Return an option of ours that every other setting overrides."""
    return Translation((flag, *values), weak=frozenset({flag}))


def exports(variables: Mapping[str, str]) -> Translation:
    """Return our options that set variables of the ranks."""
    return Translation(tuple(word for name, value in variables.items() for word in ("--export", f"{name}={value}")))


def whole(text: str, flag: str, least: int = 1) -> int:
    """Return the number that the value of an option is; raises InvalidArgument."""
    if not is_whole_number(text, 7) or int(text) < least:
        raise InvalidArgument(
            f"{flag}: '{text}' is not a whole number from {least} to 9999999", f"write {flag} {max(least, 4)}"
        )
    return int(text)


def for_each(flag: str, names: str, separator: str = ",") -> Iterator[str]:
    """Yield the flag before each name of a list."""
    for name in names.split(separator):
        if name.strip():
            yield from (flag, name.strip())


def fill_pattern(pattern: str, fields: Mapping[str, str], *, widths: bool = False) -> str:
    """Convert a pattern with fields such as %r to a template of ours; with `widths`, %4r is padded by zeros."""

    def replaced(match: re.Match[str]) -> str:
        if match[0] in "{}":
            return match[0] * 2
        width, name = match.groups()
        if name not in fields:
            hint = "the fields are " + " ".join(f"%{name}" for name in fields)
            raise InvalidArgument(f"unknown field '{match[0]}' in '{pattern}'", hint)
        value = fields[name]
        if width and value in ("{rank}", "{node_rank}"):
            return f"{value[:-1]}:0{width}}}"
        return value.zfill(int(width)) if width and value.isdecimal() else value

    return re.sub("%([0-9]{0,2})(.?)|[{}]" if widths else "%()(.?)|[{}]", replaced, pattern)
