"""The click command: a verb as the first word, then the options of a job; it returns their values with their sources.

Click converts and checks values, merges the command line with variables and defaults, reports the source of each value, and
completes words in a shell. `parser` prepares the words for click; `config` provides the defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import click
from click.core import ParameterSource

from mpilaunch import __version__
from mpilaunch.cli import config, verbs
from mpilaunch.cli.console import Console, print_result
from mpilaunch.cli.files import read_text
from mpilaunch.cli.options import OPTIONS
from mpilaunch.cli.parser import AMBIGUOUS, CommandLine, Words, read_command
from mpilaunch.cli.types import VARIABLES, Option
from mpilaunch.errors import UsageError
from mpilaunch.job.settings import Layer, Section, Setting, Settings

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

RUN = "run"
"""The default verb."""
CONTEXT = {"allow_interspersed_args": False, "auto_envvar_prefix": VARIABLES}
"""Settings of click's context: all words after the program are its arguments."""
AFTER_PROGRAM = f"{__name__}.after_program"
"""Key in `ctx.meta`: the word to complete follows a program."""


class Surroundings(NamedTuple):
    """The environment of a command, the user's console, and the command name that mpilaunch was started under."""

    environ: Mapping[str, str]
    console: Console
    name: str = "mpilaunch"


class Launcher(click.Group):
    """The command `mpilaunch`: a verb and its words, or only the words of `run`."""

    def __init__(self, name: str) -> None:
        super().__init__(name, add_help_option=False)
        self.verbs = () if has_no_verbs(name) else verbs.NAMES

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs."""
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a verb."""
        return JobCommand(cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default verb if the first word is not a verb."""
        completes_verb = ctx.resilient_parsing and not args
        if not completes_verb and (not args or args[0] not in self.verbs):
            args = [RUN, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions of the first word: verbs, options and files."""
        from click.shell_completion import CompletionItem

        items = JobCommand(RUN).shell_complete(ctx, incomplete)
        matching = [verb for verb in self.verbs if verb.startswith(incomplete)]
        return items + [CompletionItem(verb, help=verbs.module_of(verb).SUMMARY) for verb in matching]


class JobCommand(click.Command):
    """A verb with the options of a job."""

    def __init__(self, verb: str) -> None:
        program = click.Argument(["program"], nargs=-1, type=click.UNPROCESSED, required=False, shell_complete=_files)
        super().__init__(verb, params=[*OPTIONS, program], add_help_option=False, context_settings=dict(CONTEXT))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse a command line; store a `verbs.Request` in `ctx.obj`."""
        if ctx.resilient_parsing:  # a shell completes a word: only its place before or after the program matters
            with suppress(UsageError):
                ctx.meta[AFTER_PROGRAM] = bool(read_command(args).programs[-1].words)
            return super().parse_args(ctx, [])
        surroundings: Surroundings = ctx.obj
        line = read_command(args, surroundings.name, read_text)
        if line.wants:
            print_result(f"mpilaunch {__version__}" if line.wants == "version" else _help(line.topic, str(self.name)))
            ctx.exit()
        sections = tuple(Section(program.words, given_by(program.own)) for program in line.programs)
        config_file = line.job.last("config")
        defaults = config.defaults(config_file.value if config_file else None, surroundings.environ, _launcher_defaults(line))
        ctx.default_map = defaults.values
        with value_errors(ctx, line.job, defaults):
            rest = super().parse_args(ctx, [*line.job.argv, "--", *line.programs[0].words])
        settings = Settings({option.key: setting_of(ctx, option, line.job, defaults) for option in OPTIONS})
        console = surroundings.console
        console.quiet, console.verbose = settings["quiet"], settings["verbose"]
        console.show_secrets = settings["show-secrets"]
        for text, level in line.notes:
            console.remark(text, level=level)
        ctx.obj = verbs.Request(settings, sections, surroundings.environ, console)
        return rest

    def invoke(self, ctx: click.Context) -> int:
        """Run the verb; return the exit code."""
        return verbs.main_of(str(self.name))(ctx.obj)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return matching options, or let the shell complete a file name."""
        if not incomplete.startswith("-") or ctx.meta.get(AFTER_PROGRAM):
            return _files(ctx, self, incomplete)
        with_one_dash = incomplete[1:2] not in ("", "-")
        items = super().shell_complete(ctx, incomplete)
        return [item for item in items if item.value.startswith("--") or len(item.value) == 2 or with_one_dash]


def _help(topic: str, verb: str) -> str:
    from mpilaunch.cli import help

    return help.text(topic, verb)


def _files(ctx: click.Context, what: click.Parameter | click.Command, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a file name."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def has_no_verbs(name: str) -> bool:
    """Return whether mpilaunch was started under the name of another launcher, where every first word is a program."""
    if name == "mpilaunch":
        return False
    from mpilaunch.cli.dialects.table import of_command

    return name in AMBIGUOUS or of_command(name) is not None


# Values and their sources


def given_by(words: Words) -> dict[str, Setting]:
    """Return the settings of these words alone; raises UsageError for an invalid value."""
    if not words:
        return {}
    command = click.Command("options", params=list({given.option: None for given in words}), add_help_option=False)
    with value_errors(None, words):
        ctx = command.make_context("options", words.argv)
    return {option.key: setting_of(ctx, option, words) for option in OPTIONS if option in command.params}


def setting_of(ctx: click.Context, option: Option, words: Words, defaults: config.Defaults | None = None) -> Setting:
    """Return the value of an option and its source."""
    name = str(option.name)
    value, source = ctx.params[name], ctx.get_parameter_source(name)
    if source == ParameterSource.COMMANDLINE and (given := words.last(option.key)):
        return Setting(value, given.source, Layer.COMMAND_LINE)
    if source == ParameterSource.ENVIRONMENT:
        return Setting(value, option.variable, Layer.ENVIRONMENT)
    if source == ParameterSource.DEFAULT_MAP and defaults is not None:
        origin = defaults.origins[name]
        return Setting(value, origin.source, origin.layer)
    return Setting(value)


@contextmanager
def value_errors(ctx: click.Context | None, words: Words, defaults: config.Defaults | None = None) -> Iterator[None]:
    """Convert click's error about a value into a UsageError that names the source of the value."""
    try:
        yield
    except click.BadParameter as error:
        option = error.param
        if not isinstance(option, Option):
            raise
        name = str(option.name)
        source = ctx.get_parameter_source(name) if ctx else ParameterSource.COMMANDLINE
        given = words.last(option.key)
        place = option.flag if given is None else f"{given.place}: {given.flag}" if given.place else given.flag
        if source == ParameterSource.ENVIRONMENT:
            place = option.variable
        elif source == ParameterSource.DEFAULT_MAP and defaults is not None:
            place = defaults.origins[name].place
        raise UsageError("option-value", f"{place}: {error.message}", hint=option.value_hint) from None


def _launcher_defaults(line: CommandLine) -> dict[str, tuple[str | list[str], str]]:
    """Return the weakest settings: the defaults of another launcher, and its options that every other setting overrides."""
    result: dict[str, tuple[str | list[str], str]] = {**line.defaults}
    for option, value, flag, _ in line.weak:
        values = [given.value for given in line.weak if given.option is option]
        result[option.key] = (values if option.multiple else value, flag)
    return result


def read(words: Sequence[str], surroundings: Surroundings) -> verbs.Request:
    """Parse a command line of `run`; raises UsageError."""
    with JobCommand(RUN).make_context(surroundings.name, list(words), obj=surroundings) as ctx:
        request: verbs.Request = ctx.obj
        return request


def run(words: Sequence[str], surroundings: Surroundings) -> int:
    """Run a command line; return its exit code; raises LaunchError."""
    command = Launcher(surroundings.name)
    try:
        with command.make_context(surroundings.name, list(words), obj=surroundings) as ctx:
            code: int = command.invoke(ctx)
            return code
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        raise UsageError("option-value", error.format_message()) from error


def complete(name: str, variable: str, instruction: str) -> int:
    """Print a shell's completion script, or the completions of a word; return the exit code."""
    from click.shell_completion import shell_complete

    return shell_complete(Launcher(name), {}, name, variable, instruction)


def completion_variable(name: str) -> str:
    """Return the variable by which a shell asks for completion: _MPILAUNCH_COMPLETE."""
    return f"_{name}_COMPLETE".replace("-", "_").replace(".", "_").upper()


