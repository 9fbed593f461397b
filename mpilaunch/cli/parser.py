"""Splits a command line into programs and options, and translates the options of other launchers, before click parses it.

Click's public API does not cover this: one option of another launcher may stand for several of ours, each program of a job has
its own options, and only the preceding options tell which launcher is meant. So this module splits the words by the table of
options, lets `dialects` translate unknown ones, and hands click a list of `--name=value` for the job and one for each program.
It never checks values; click does.

Pure: its caller passes the function that reads files. All words after a program's name belong to the program, up to a word ":"
as for mpirun and mpiexec; after "--", ":" is an argument too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from mpilaunch.cli.detection import Detection
from mpilaunch.cli.files import app_lines
from mpilaunch.cli.options import BY_FLAG, BY_NAME, by_flag
from mpilaunch.cli.types import Option, OptionUse, OptionUses
from mpilaunch.errors import UsageError

if TYPE_CHECKING:
    from mpilaunch.cli.dialects.rows import ReadFile, Translation

MCA = "mca"
"""Our option that `dialects` translates, because some of its parameters configure mpirun itself."""


class Program(NamedTuple):
    """One program: its words, which may be none, the options that apply only to it, and parts for `Dialect.finish`."""

    words: list[str]
    own: OptionUses
    parts: Mapping[str, str] = MappingProxyType({})


class CommandLine(NamedTuple):
    """A command line.

    Attributes:
        job: the options for the whole job.
        programs: its programs, at least one.
        defaults: weakest settings, by option: values of another launcher, with their sources.
        notes: messages for the user, each with its verbosity level.
        wants: "help", "version" or "text" if the user asked for that; the words after it are not parsed.
        topic: the word after --help, or the text.
    """

    job: OptionUses
    programs: list[Program]
    defaults: dict[str, tuple[str | list[str], str]]
    notes: tuple[tuple[str, int], ...]
    wants: str
    topic: str


def read_command(
    words: Sequence[str],
    name: str = "mpilaunch",
    read_file: ReadFile | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
    of_verb: Iterable[Option] = (),
    given: OptionUses | None = None,
) -> CommandLine:
    """Parse a command line; raises UsageError.

    Args:
        name: the command name that mpilaunch was started under.
        read_file: reads files of more options; without it, options that name such a file are an error.
        environ: the head's variables; those of some launchers set options, if the command line is that launcher's.
        of_verb: options that only the verb of the command line has.
        given: collects the options for the whole job, also those before an error.
    """
    reader = _Reader(name, read_file, environ, {**BY_FLAG, **by_flag(of_verb)}, OptionUses() if given is None else given)
    rest = list(words)
    programs = [reader.program(rest)]
    while reader.goes_on:
        programs.append(reader.program(rest, f"program {len(programs) + 1}"))
    if not reader.wants:
        reader.add_exported()
        programs = _checked(reader, programs)
    return CommandLine(reader.job, programs, reader.defaults(), tuple(reader.notes.items()), reader.wants, reader.topic)


def _checked(reader: _Reader, programs: list[Program]) -> list[Program]:
    """Return the programs of the job, each with a name; the options of a single program become options of the job."""
    if (app := reader.job.last("app")) is not None:
        programs = _programs_of_file(reader, app.value, programs)
    programs = [finished for program in programs for finished in reader.finish(program, len(programs))]
    reader.add_agent()
    if len(programs) == 1:
        reader.job += programs[0].own
        programs = [Program(programs[0].words, OptionUses())]
    for number, (words, *_) in enumerate(programs, start=1):
        if len(programs) > 1 and not words:
            message = f"program {number} of {len(programs)} has no name"
            raise UsageError("no-program", message, hint="':' separates two programs: -np 1 ./a : -np 2 ./b")
        if words and not words[0].strip():
            message = "the name of the program is empty" + (f" (program {number})" if len(programs) > 1 else "")
            raise UsageError("no-program", message, hint="check that its shell variable is set")
    return programs


def _programs_of_file(reader: _Reader, path: str, before: list[Program]) -> list[Program]:
    """Return the programs in the file of --app; the options on the command line apply to all of them."""
    if len(before) > 1 or before[0].words:
        message = f"--app {path} and a program on the command line cannot be used together"
        raise UsageError("option-conflict", message, hint="remove one of the two")
    reader.job += before[0].own
    programs: list[Program] = []
    pending = OptionUses()
    for place, words in app_lines(reader.read_file(path, "app file"), path):
        rest = list(words)
        while rest or reader.goes_on:
            program = reader.program(rest, place, pending)
            pending = OptionUses() if program.words else program.own
            if program.words:
                programs.append(program)
    if pending or not programs:
        raise UsageError("no-program", f"{path}: no program after the last options", hint="write a line like: -np 2 ./a")
    return programs


class _Reader:
    """Parses one program after another; collects the options of the whole job in `job`."""

    def __init__(
        self,
        name: str,
        read_file: ReadFile | None,
        environ: Mapping[str, str],
        flags: Mapping[str, Option],
        job: OptionUses,
    ) -> None:
        self._by_flag = flags
        self.job = job
        self.notes: dict[str, int] = {}
        self.goes_on = False
        self.wants = ""
        self.topic = ""
        self._own = OptionUses()
        self._weak = OptionUses()  # options that every other setting overrides
        self._place = ""
        self._agent: dict[str, str] = {}
        self._agent_flag = ""
        self._read_file = read_file
        self._environ = environ
        self._parts: dict[str, str] = {}
        self._launcher = Detection(name)
        self._add_variables()

    # Results

    def add_agent(self) -> None:
        """Add the agent that several options of other launchers describe together, unless the user names one."""
        if self._agent and self.job.last("remote-agent") is None:
            from mpilaunch.cli.dialects.rows import agent_template

            if (template := agent_template(self._agent)) is not None:
                self.job.add(OptionUse(BY_NAME["remote-agent"], template, self._agent_flag))

    def add_exported(self) -> None:
        """Add what exported parameters of Open MPI's mpirun mean, for its users; all other settings override them."""
        if self._launcher.names != {"openmpi"}:
            return
        from mpilaunch.cli.dialects.mpi.mca import exported

        given, self._weak = self._weak, OptionUses()
        for variable, translation in exported(self._environ, self.read_file):
            self._add(translation, variable, weak=True)
        self.job[:0] = [use for use in self._weak if use.option.key == "export"]  # -x adds to these
        others = (use for use in self._weak if use.option.key != "export" and given.last(use.option.key) is None)
        self._weak = OptionUses([*given, *others])

    def defaults(self) -> dict[str, tuple[str | list[str], str]]:
        """Return the defaults that differ for users of the detected launcher, and its weak options: values and sources."""
        result: dict[str, tuple[str | list[str], str]] = {**self._launcher.defaults()}
        for use in self._weak:
            values = [other.value for other in self._weak if other.option is use.option]
            result[use.option.key] = (values if use.option.multiple else use.value, use.flag)
        return result

    def read_file(self, path: str, purpose: str) -> str:
        """Return the text of a file that an option names."""
        if self._read_file is None:
            raise UsageError("file-unreadable", f"cannot read {purpose} '{path}' here")
        return self._read_file(path, purpose)

    # Programs

    def program(self, rest: list[str], place: str = "", pending: Iterable[OptionUse] = ()) -> Program:
        """Remove the words of one program from `rest`; set `goes_on` if a ':' follows.

        Args:
            place: prefix of error messages.
            pending: earlier options that apply to this program.
        """
        self._own, self._place = OptionUses(pending), place
        try:
            whole = self._options(rest)
        except UsageError as error:
            raise error.within(place) if place else error from None
        end = rest.index(":") if ":" in rest and not whole else len(rest)
        words = rest[:end]
        self.goes_on = end < len(rest)
        del rest[: end + 1]
        parts, self._parts = self._parts, {}
        return Program(words, self._own, parts)

    def _options(self, rest: list[str]) -> bool:
        """Remove the options from `rest`; return whether "--" ended them."""
        while rest and rest[0].startswith("-") and rest[0] != "-" and not self.wants:
            word = rest.pop(0)
            if word == "--":
                return True
            word, *rest[:0] = self._launcher.split_joined(word)
            flag, equals, text = word.partition("=")
            values = [text] if equals else []
            flag = flag if flag in self._by_flag or (hyphens := flag.replace("_", "-")) not in self._by_flag else hyphens
            option = None if self._launcher.has(flag) else self._by_flag.get(flag)
            if option is None or option.key == MCA:
                self._translate(flag, values, rest)
            elif option.key == "help":
                self.wants = option.key
                self.topic = next((topic for topic in (values or rest)[:1] if not topic.startswith("-")), "")
            else:
                self._launcher.narrow_by_mark(option.spelling(flag))
                self._take(option, flag, values, rest, self._own if option.local else self.job)
        if self.wants:
            rest.clear()
        if not (count := self._launcher.start_words(rest)):
            return not self._launcher.separates_programs
        self._parts |= {"started": rest[count - 1], **({"python": rest[0]} if count > 1 else {})}
        del rest[:count]
        return self._options(rest)

    def _take(
        self, option: Option, flag: str, values: list[str], rest: list[str], target: OptionUses, foreign: str = ""
    ) -> None:
        """Add one option to `target`, with the value that its flag stands for or the next words.

        Args:
            foreign: the flag of another launcher that the option translates.
        """
        fixed = option.fixed_value(flag)
        spelled = option.spelling(flag)
        if fixed is not None:
            if values and (spelled != option.flag or option.key == "version"):
                raise UsageError("option-value", f"option {spelled} takes no value")
            values = values or [fixed]
        while len(values) < option.words and rest:
            values.append(rest.pop(0))
        if len(values) < option.words:
            needs = f"option {foreign or flag} needs {option.metavar or 'a value'}"
            raise UsageError("option-value", needs, hint=option.value_hint)
        use = OptionUse(option, "=".join(values), foreign or spelled, self._place)
        if option.key == "version":
            self.wants = option.key
        elif option.key == "dialect":
            self._launcher.name(use.value)
            self._add_variables()
        target.add(use)

    def _translate(self, flag: str, values: list[str], rest: list[str], variable: str = "") -> None:
        """Add our options for an option of another launcher and its arguments; `variable` is the variable that sets it."""
        from mpilaunch.cli.dialects import table

        launcher = self._launcher
        row = table.find(flag, launcher.names, named=launcher.named)
        if row is None:
            from mpilaunch.cli.dialects.others import unknown

            raise unknown(flag, table.flags(launcher.names), launcher.separate.name if launcher.separate else "")
        if values and not row.metavar:
            raise UsageError("option-value", f"option {flag} takes no value")
        while rest and row.needs_more(values):
            values.append(rest.pop(0))
        if row.needs_more(values):
            raise UsageError("option-value", f"option {flag} needs {row.metavar}", hint=f"write {row.usage(flag, values)}")
        launcher.narrow(row.dialects)
        source = variable or flag
        translation = table.translate(row, source, values, self.read_file)
        self._add(translation, source, everywhere=row.everywhere, weak=row.weak)

    def _add_variables(self) -> None:
        """Add the options that variables of the separate launcher set."""
        if self._launcher.separate is not None:
            from mpilaunch.cli.dialects.table import variables

            for flag, values, variable in variables(self._launcher.separate, self._environ):
                self._translate(flag, values, [], variable)

    def finish(self, program: Program, programs: int) -> list[Program]:
        """Return the program, or those it stands for; add the options that the parts of a separate launcher make together."""
        separate = self._launcher.separate
        if separate is None or separate.finish is None:
            return [program]
        from mpilaunch.cli.dialects.rows import InvalidArgument, Surroundings

        named = any(self.job.last(key) or program.own.last(key) for key in ("host", "hostfile"))
        around = Surroundings(named, self._environ, self.read_file, programs)
        try:
            translation, words = separate.finish(program.parts, program.words, around)
        except InvalidArgument as error:
            reason, hint = error.args
            raise UsageError("option-value", reason, hint=hint) from None
        given, self.job, self._own = self.job, OptionUses(), program.own
        self._add(translation, separate.name)
        self.job += given  # the options of the command line override them
        ranks = BY_NAME["np"]
        several = translation.programs
        own = [OptionUses([*program.own, OptionUse(ranks, count, ranks.flag)]) for count, _ in several]
        return [Program([*each], uses) for (_, each), uses in zip(several, own, strict=True)] or [Program(words, program.own)]

    def _add(self, translation: Translation, flag: str, *, everywhere: bool = False, weak: bool = False) -> None:
        """Add what an option or a variable of another launcher means, for all programs or weakly; messages name `flag`."""
        words = list(translation.words)
        while words:
            own, equals, text = words.pop(0).partition("=")
            option = BY_FLAG[own]
            target = self._own if option.local and not everywhere and self._launcher.separates_programs else self.job
            target = self._weak if weak or own in translation.weak else target
            self._take(option, own, [text] if equals else [], words, target, flag)
        for text, level in translation.notes:
            self.notes.setdefault(text, level)
        if translation.agent:
            self._agent |= translation.agent
            self._agent_flag = flag
        self._parts = translation.parts_after(self._parts)
        if translation.text:
            self.wants, self.topic = "text", translation.text
