"""The words of a command line: which of them are options, what they say, and for which program.

Pure: the files that options name are read by the function that it is given. All that follows a program's name belongs to the
program, up to a word ":" as for mpirun and mpiexec; behind "--" not even that ends it. What is no option of ours is looked up
in `dialects`, which is loaded only then: it translates an option of another launcher to words of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mpilaunch.errors import UsageError
from mpilaunch.options import BY_FLAG, Option, Setting, Value
from mpilaunch.text import near
from mpilaunch.values import value_from_text

if TYPE_CHECKING:
    from mpilaunch.dialects import Row, Translation

ReadFile = Callable[[str, str], str]
"""Path, and what the file is for the user, to its text; raises UsageError."""

HABIT, COMMAND_LINE = 1, 4
"""Layers of settings; see `options.Setting`."""
DIALECTS = frozenset({"openmpi", "hydra", "intel"})
NAMES = {
    **dict.fromkeys(("mpirun.openmpi", "mpiexec.openmpi", "orterun", "prterun"), "openmpi"),
    **dict.fromkeys(("mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich"), "hydra"),
}
"""The dialect of a name that mpilaunch may be started under; `mpirun` and `mpiexec` are everybody's."""
ACCENTS = {
    **dict.fromkeys(("-f", "--hosts", "--ppn"), frozenset({"hydra", "intel"})),
    **dict.fromkeys(("-x", "-H", "-N", "--npernode", "--pernode", "--oversubscribe"), frozenset({"openmpi"})),
}
"""Spellings of ours by which a command line for `mpirun` or `mpiexec` tells whose it is."""
TRANSLATED = frozenset({"mca"})
"""Options of ours whose words `dialects` reads, as some of their values act."""


@dataclass(frozen=True)
class Section:
    """One program of a command line with its arguments, and what is said for it alone; its words may be empty."""

    program: list[str]
    said: Mapping[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """A command line.

    Attributes:
        said: what it says for the whole job.
        habits: what its dialect does when nobody says anything.
        sections: its programs, at least one.
        notes: texts for the user; with a level of verbosity.
    """

    said: dict[str, Setting]
    habits: dict[str, Setting]
    sections: tuple[Section, ...]
    notes: tuple[tuple[str, int], ...] = ()


def read_words(words: Sequence[str]) -> tuple[dict[str, Setting], list[str]]:
    """Return what the options of a command line with one program say, and that program; raises UsageError."""
    command = read_command(words)
    return command.said, command.sections[0].program


def read_command(words: Sequence[str], name: str = "mpilaunch", read_file: ReadFile | None = None) -> Command:
    """Return what a command line says; raises UsageError.

    Args:
        name: what mpilaunch was started as.
        read_file: for the options that name a file with more options; without it they are an error.
    """
    reader = _Reader(NAMES.get(name), read_file, by_accent=name in ("mpirun", "mpiexec"))
    rest = list(words)
    sections = [reader.section(rest)]
    while reader.goes_on:
        sections.append(reader.section(rest, len(sections) + 1))
    if "app" in reader.job:
        sections = _sections_of_file(reader, sections)
    if len(sections) == 1:
        habits = reader.habits()
        return Command(laid_over(reader.job, sections[0].said), habits, (Section(sections[0].program),), reader.notes())
    for number, section in enumerate(sections, start=1):
        if not section.program:
            told = f"program {number} of {len(sections)} has no name"
            raise UsageError("no-program", told, hint="each ':' stands between two programs: -np 1 ./a : -np 2 ./b")
    habits = reader.habits()
    return Command(reader.job, habits, tuple(sections), reader.notes())


def _sections_of_file(reader: _Reader, before: list[Section]) -> list[Section]:
    """Return the programs that the file of --app names; what was said before it is for all of them."""
    from mpilaunch.appfile import lines_of

    path = str(reader.job["app"].value)
    if len(before) > 1 or before[0].program:
        told = f"--app {path} names the programs, and so does the command line"
        raise UsageError("option-conflict", told, hint="leave the one or the other out")
    reader.job.update(laid_over(reader.job, before[0].said))
    sections: list[Section] = []
    kept: Mapping[str, Setting] = {}
    for where, words in lines_of(reader.read_file(path, "app file"), path):
        try:
            rest = list(words)
            while rest or reader.goes_on:
                section = reader.section(rest, kept=kept)
                kept = {} if section.program else section.said
                if section.program:
                    sections.append(section)
        except UsageError as error:
            raise error.within(where) from None
    if kept or not sections:
        raise UsageError("no-program", f"{path}: no program behind the last options", hint="write a line like: -np 2 ./a")
    return sections


def laid_over(job: Mapping[str, Setting], own: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return what both say: lists of one layer one behind the other, else the program's own word."""
    both = {**job, **own}
    for name in job.keys() & own.keys():
        first, second = job[name], own[name]
        if isinstance(first.value, tuple) and isinstance(second.value, tuple) and first.layer == second.layer:
            both[name] = Setting(first.value + second.value, second.provenance, second.layer)
    return both


@dataclass(frozen=True)
class _Origin:
    """Who says a value that is no word of ours: the flag as typed, and for whom its row of the table speaks."""

    flag: str
    everywhere: bool = False
    weak: bool = False


class _Reader:
    """Reads section after section; what is said for the whole job gathers in `job`."""

    def __init__(self, dialect: str | None, read_file: ReadFile | None, *, by_accent: bool) -> None:
        self.job: dict[str, Setting] = {}
        self.goes_on = False
        self._own: dict[str, Setting] = {}
        self._weak: dict[str, Setting] = {}
        self._notes: dict[str, int] = {}
        self._agent: dict[str, str] = {}
        self._agent_said_by = ""
        self._dialects = frozenset({dialect}) if dialect else DIALECTS
        self._named = False
        self._accents = ACCENTS if by_accent else {}
        self._read_file = read_file

    # What came of it

    def habits(self) -> dict[str, Setting]:
        """Return what the dialect does when nobody says anything, and what the options say that give way to all others."""
        if self._agent and "remote-agent" not in self.job:
            from mpilaunch.foreign import agent_template

            template = agent_template(self._agent)
            if template is not None:
                self.job["remote-agent"] = Setting(template, self._agent_said_by, COMMAND_LINE)
        habits = dict(self._weak)
        if "openmpi" not in self._dialects:
            # Hydra places as many ranks as are asked for, going round its hosts.
            habits["oversubscribe"] = Setting(True, "hydra's habit", HABIT)
        return habits

    def notes(self) -> tuple[tuple[str, int], ...]:
        """Return what the user is told, each text once."""
        return tuple(self._notes.items())

    def read_file(self, path: str, what: str) -> str:
        """Return the text of a file that an option names."""
        if self._read_file is None:
            raise UsageError("file-unreadable", f"no {what} can be read here")
        return self._read_file(path, what)

    # Sections

    def section(self, rest: list[str], number: int = 0, kept: Mapping[str, Setting] | None = None) -> Section:
        """Take the words of one program off `rest`; `goes_on` tells whether a ':' follows."""
        self._own = dict(kept or {})
        try:
            whole = self._options(rest)
        except UsageError as error:
            raise error.within(f"program {number}") if number else error from None
        end = rest.index(":") if ":" in rest and not whole else len(rest)
        program = rest[:end]
        self.goes_on = end < len(rest)
        del rest[: end + 1]
        return Section(program, self._own)

    def _options(self, rest: list[str]) -> bool:
        """Take the options off `rest`; tell whether "--" ended them."""
        while rest and rest[0].startswith("-") and rest[0] != "-":
            word = rest.pop(0)
            if word == "--":
                return True
            flag, equals, text = word.partition("=")
            values = [text] if equals else []
            option, known = _option_of(flag)
            if option is None or option.name in TRANSLATED:
                self._translate(flag, values, rest)
            else:
                self._listen(self._accents.get(known, DIALECTS))
                self._take(option, known, flag, values, rest)
        return False

    def _listen(self, dialects: frozenset[str]) -> None:
        """An option was said that these dialects have: who speaks otherwise is not meant."""
        self._dialects = self._dialects & dialects or self._dialects

    def _take(
        self, option: Option, flag: str, typed: str, values: list[str], rest: list[str], by: _Origin | None = None
    ) -> None:
        """Take the value of one option: what its flag says, or the next words."""
        alone = option.said_by(flag)
        if values and alone is not None and flag != option.flag:
            raise UsageError("option-value", f"option {flag} takes no value")
        if not values and alone is not None:
            self._say(option, alone, by)
            return
        while len(values) < option.words and rest:
            values.append(rest.pop(0))
        if len(values) < option.words:
            needs = f"option {typed} needs {option.metavar or 'a value'}"
            raise UsageError("option-value", needs, hint=f"{option.flag}: {option.help}")
        self._say(option, value_from_text(option, "=".join(values), by.flag if by else flag), by)

    def _say(self, option: Option, value: Value, by: _Origin | None) -> None:
        place = self._own if option.local else self.job
        if by is not None and by.everywhere:
            place = self.job
        if by is not None and by.weak:
            place = self._weak
        earlier = place[option.name].value if option.name in place else None
        if option.repeatable:
            value = (*(earlier if isinstance(earlier, tuple) else ()), str(value))
        elif option.name == "map-by" and isinstance(earlier, str) and isinstance(value, str):
            # Modifiers add to a policy, whichever comes first: mpirun has them as options of their own.
            value = earlier + value if value.startswith(":") else value + earlier if earlier.startswith(":") else value
        elif option.name == "dialect" and value != "auto":
            self._dialects, self._named = frozenset({str(value)}), True
        layer = HABIT if place is self._weak else COMMAND_LINE
        place[option.name] = Setting(value, by.flag if by else option.flag, layer)

    # Options of others

    def _translate(self, flag: str, values: list[str], rest: list[str]) -> None:
        """Take an option of another launcher with its arguments, and read the words of ours that it means."""
        from mpilaunch import dialects

        row = dialects.find(flag, self._dialects, named=self._named)
        if row is None:
            raise _unknown(flag, dialects.flags(self._dialects))
        if values and not row.words:
            raise UsageError("option-value", f"option {flag} takes no value")
        while len(values) < row.words and rest and not (row.joined and values and "=" in values[0]):
            values.append(rest.pop(0))
        if len(values) < row.words and not (row.joined and values and "=" in values[0]):
            raise UsageError("option-value", f"option {flag} needs {row.metavar}")
        self._listen(row.dialects)
        self._follow(row, flag, dialects.translate(row, flag, values, self.read_file))

    def _follow(self, row: Row, flag: str, translation: Translation) -> None:
        origin = _Origin(flag, row.everywhere, row.weak)
        words = list(translation.words)
        while words:
            own, equals, text = words.pop(0).partition("=")
            option = BY_FLAG.get(own)
            if option is None:
                raise _unknown(own, BY_FLAG)
            weak = own in translation.weak
            by = _Origin(flag, origin.everywhere, weak=True) if weak else origin
            self._take(option, own, flag, [text] if equals else [], words, by)
        for text, level in translation.notes:
            self._notes.setdefault(text, level)
        if translation.agent:
            self._agent |= translation.agent
            self._agent_said_by = flag


def _option_of(word: str) -> tuple[Option | None, str]:
    """Return the option of a flag, and the flag as the table spells it."""
    # `-np` is `--np`, but `-n` is never `--n`.
    for flag in (word, "-" + word) if len(word) > 2 else (word,):
        if flag in BY_FLAG:
            return BY_FLAG[flag], flag
    return None, word


def _unknown(word: str, foreign: Sequence[str] | Mapping[str, object]) -> UsageError:
    digits = len(word) - len(word.rstrip("0123456789"))
    if digits and not word.startswith("--") and (glued := word[:-digits]) in {*BY_FLAG, *(flag[1:] for flag in BY_FLAG)}:
        return UsageError("option-unknown", f"unknown option {word}", hint=f"write {glued} {word[-digits:]}")
    known = near("--" + word.lstrip("-"), (*BY_FLAG, *foreign)) if len(word) > 2 else None
    guess = f"; did you mean {known if word.startswith('--') else known[1:]}?" if known else ""
    return UsageError("option-unknown", f"unknown option {word}{guess}", hint="mpilaunch --help lists all options")
