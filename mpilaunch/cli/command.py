"""A command line, from its words to the verb that runs it: `parser` splits the words, and click makes values of them.

Click converts and checks values, merges the words with variables and defaults, reports the source of each value, and completes
words in a shell. `config` provides the defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from mpilaunch import __version__
from mpilaunch.cli import config, verbs
from mpilaunch.cli.advice.mistakes import overridden, unlike_open_mpi
from mpilaunch.cli.console import Console, print_result
from mpilaunch.cli.detection import AMBIGUOUS
from mpilaunch.cli.files import read_named
from mpilaunch.cli.options import BY_NAME, OPTIONS
from mpilaunch.cli.parser import CommandLine, read_command
from mpilaunch.cli.types import VARIABLES, Option, OptionUses, Origin
from mpilaunch.cli.verbs.error_report import ErrorReport
from mpilaunch.errors import ExitCode, UsageError
from mpilaunch.job.settings import Layer, Section, Setting, Settings

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Invocation(NamedTuple):
    """The environment of a command, the user's console, the place for an error, and mpilaunch's command name."""

    environ: Mapping[str, str]
    console: Console
    report: ErrorReport
    name: str = "mpilaunch"


def run(words: Sequence[str], invocation: Invocation) -> int:
    """Run a command line; return its exit code; raises LaunchError."""
    verb, words = split_verb(words, invocation.name)
    if command := verbs.command_of(verb):
        return _run_command(command, verb, words, invocation)
    own = verbs.options_of(verb)
    given = OptionUses()
    invocation.report.path = invocation.environ.get(BY_NAME["report"].variable) or None
    try:
        line = read_command(words, invocation.name, read_named, invocation.environ, own, given)
    finally:
        if use := given.last("report"):
            invocation.report.path = use.value
    if line.wants == "text":
        for text, level in line.notes:
            invocation.console.note(text, level=level)
        return print_result(line.topic)
    if line.wants == "version":
        return print_result(_version(invocation.name))
    if line.wants:
        from mpilaunch.cli import help

        return print_result(help.text(line.topic or help.topic_of(invocation.name), verb))
    return verbs.main_of(verb)(_request(line, invocation, own))


def _run_command(command: click.Command, verb: str, words: Sequence[str], invocation: Invocation) -> int:
    """Run a verb that has a command line of its own; return its exit code; raises LaunchError."""
    from mpilaunch.cli import help

    if {"-h", "--help"}.intersection(words):
        return print_result(help.text(verb))
    import shutil

    if program := shutil.which(verb):
        invocation.console.note(f"mpilaunch run {verb} runs the program {program}; this is the verb '{verb}' of mpilaunch")
    try:
        with command.make_context(f"mpilaunch {verb}", [*words], obj=invocation) as ctx:
            code: int = command.invoke(ctx)
            return code
    except click.UsageError as error:
        message = f"mpilaunch {verb}: {error.format_message().rstrip('.')}"
        raise UsageError("option-value", message, hint=f"usage: {verbs.module_of(verb).USAGE}") from None


def _version(name: str) -> str:
    """Return the version; under another launcher's name with that launcher, for which Horovod and Accelerate look there."""
    if not verbs_of(name):
        from mpilaunch.cli.dialects import table

        return f"mpilaunch {__version__}, in place of {table.of_name(table.of_command(name) or 'openmpi').title}"
    return f"mpilaunch {__version__}"


def read(words: Sequence[str], invocation: Invocation) -> verbs.Request:
    """Return the request of a command line without a verb; raises UsageError."""
    return _request(read_command(words, invocation.name, read_named, invocation.environ), invocation)


def split_verb(words: Sequence[str], name: str) -> tuple[str, Sequence[str]]:
    """Return the verb, by default `run`, and the words after it; only the first word can be a verb."""
    return (words[0], words[1:]) if words and words[0] in verbs_of(name) else ("run", words)


def verbs_of(name: str) -> tuple[str, ...]:
    """Return the verbs; there are none under the name of another launcher, where every first word is a program."""
    if name != "mpilaunch":
        from mpilaunch.cli.dialects.table import of_command

        if name in AMBIGUOUS or of_command(name) is not None:
            return ()
    return verbs.NAMES


def _request(line: CommandLine, invocation: Invocation, of_verb: tuple[Option, ...] = ()) -> verbs.Request:
    environ, console, report, _ = invocation
    sections = tuple(
        Section(program.words, settings_of(program.own, dict.fromkeys(use.option for use in program.own)))
        for program in line.programs
    )
    file = line.job.last("config")
    defaults = config.defaults(file.value if file else None, environ, line.defaults)
    settings = Settings(settings_of(line.job, (*OPTIONS, *of_verb), defaults))
    console.quiet, console.verbose = settings["quiet"], settings["verbose"]
    console.show_secrets = settings["show-secrets"]
    for text, level in (*line.notes, *((note, 0) for note in (*overridden(line.job), *unlike_open_mpi(settings)))):
        console.note(text, level=level)
    only_shows = settings["dry-run"] or settings["show-config"] or settings["show-env"] is not None
    report.path = None if only_shows else settings["report"]
    return verbs.Request(settings, sections, environ, console, report)


# Values and their sources


def settings_of(
    uses: OptionUses, options: Iterable[Option], defaults: config.Defaults | None = None
) -> dict[str, Setting]:
    """Return the settings of these options; raises UsageError for an invalid value.

    Args:
        uses: the command line's uses of the options.
        defaults: values for options that neither the command line nor a variable sets; None for the options of one program,
            which have no other source than its own words.
    """
    command = click.Command("mpilaunch", params=list(options), add_help_option=False)
    sources: dict[str, Any] = {}
    if defaults is not None:
        default_map = {name: value for name, (value, _) in defaults.items()}
        sources = {"auto_envvar_prefix": VARIABLES, "default_map": default_map}
    try:
        ctx = command.make_context("mpilaunch", uses.argv, **sources)
    except click.BadParameter as error:
        if not isinstance(error.param, Option):
            raise
        place = _origin(error.param, error.ctx, uses, defaults).place
        raise UsageError("option-value", f"{place}: {error.message}", hint=error.param.value_hint) from None
    origins = {option: _origin(option, ctx, uses, defaults) for option in options}
    return {
        option.key: Setting(ctx.params[str(option.name)], origin.source, origin.layer) for option, origin in origins.items()
    }


def _origin(option: Option, ctx: click.Context | None, uses: OptionUses, defaults: config.Defaults | None) -> Origin:
    """Return where the value of an option comes from; `ctx` is None if click did not get as far as reading the words."""
    source = ctx.get_parameter_source(str(option.name)) if ctx else ParameterSource.COMMANDLINE
    if source == ParameterSource.COMMANDLINE and (use := uses.last(option.key)):
        return use.origin
    if source == ParameterSource.ENVIRONMENT:
        return Origin(option.variable, option.variable, Layer.ENVIRONMENT)
    if source == ParameterSource.DEFAULT_MAP and defaults is not None:
        return defaults[option.name][1]
    return Origin("default", option.flag, Layer.DEFAULT)


# Completion in a shell


class Completer(click.Command):
    """The command line as click's completion sees it: verbs, options and files; no value is read."""

    def __init__(self, name: str) -> None:
        program = click.Argument(["program"], nargs=-1, type=click.UNPROCESSED, required=False, shell_complete=self._words)
        super().__init__(name, params=[*OPTIONS, program], add_help_option=False)
        self._first = self._after_program = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store where the word to complete is: the first word, an option, or an argument of a program."""
        self._first = not args
        with suppress(UsageError):
            verb, words = split_verb(args, str(self.name))
            if command := verbs.command_of(verb):
                self.params[:-1] = command.params
                return super().parse_args(ctx, [])
            self.params[:0] = own = verbs.options_of(verb)
            self._after_program = bool(read_command(words, of_verb=own).programs[-1].words)
        return super().parse_args(ctx, [])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the matching options; those with one dash only for a word that begins with one."""
        if self._after_program:
            return self._words(ctx, self.params[-1], incomplete)
        with_one_dash = incomplete[1:2] not in ("", "-")
        items = super().shell_complete(ctx, incomplete)
        return [item for item in items if item.value.startswith("--") or len(item.value) == 2 or with_one_dash]

    def _words(self, ctx: click.Context, argument: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell complete a file name; the first word may also be a verb."""
        from click.shell_completion import CompletionItem

        matching = [verb for verb in verbs_of(str(self.name)) if self._first and verb.startswith(incomplete)]
        verb_items = [CompletionItem(verb, help=verbs.module_of(verb).SUMMARY) for verb in matching]
        return [CompletionItem(incomplete, type="file"), *verb_items]


def complete(name: str, variable: str, instruction: str) -> int:
    """Print a shell's completion script, or the completions of a word; return the exit code."""
    from click.shell_completion import shell_complete

    try:
        return shell_complete(Completer(name), {}, name, variable, instruction)
    except BrokenPipeError:  # nobody reads it
        return ExitCode.OK
