"""The option class and its value types: each type checks its values, words the error and completes them in a shell.

They extend click's option and types. A type never knows the source of a value: `command` adds it to the error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from mpilaunch.text import did_you_mean, is_whole_number

if TYPE_CHECKING:
    _Choice = click.Choice[str]
    _AnyType = click.ParamType[Any]
else:
    _Choice, _AnyType = click.Choice, click.ParamType  # generic only in newer versions of click

VARIABLES = "MPILAUNCH"
"""Prefix of the environment variables that set options."""

_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|h|d)?", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FLAG_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class Number(click.IntRange):
    """A whole number in a range."""

    wanted = "a whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        if isinstance(value, str):
            if not is_whole_number(value.removeprefix("-"), 15):
                self.fail(f"'{value}' is not a whole number", param, ctx)
            value = int(value)
            _check_range(self, value, param, ctx)
        return value


class Seconds(click.FloatRange):
    """A duration: seconds, or a number with s, m, h or d."""

    wanted = "a time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the duration in seconds."""
        if isinstance(value, str):
            match = _TIME.fullmatch(value)
            if match is None:
                self.fail(f"'{value}' is not a time", param, ctx)
            value = float(match[1]) * _SECONDS[match[2] or "s"]
            _check_range(self, value, param, ctx)
        return value


def _check_range(
    limits: Number | Seconds, value: float, param: click.Parameter | None, ctx: click.Context | None
) -> None:
    least, most = limits.min or 0, limits.max
    if value < least or (most is not None and value > most):
        allowed = f"{least:g} or more" if most is None else f"{least:g} to {most:g}"
        limits.fail(f"{value:g} is out of range: {allowed}", param, ctx)


class YesNo(click.types.BoolParamType):
    """A flag; in the environment and after "=", a word such as yes or no."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return whether the flag is set."""
        if isinstance(value, str):
            if value.lower() not in _FLAG_WORDS:
                self.fail(f"'{value}' is neither yes nor no", param, ctx)
            return _FLAG_WORDS[value.lower()]
        return value


class OneOf(_Choice):
    """One of a few words."""

    wanted = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word."""
        if value not in self.choices:
            words = [str(choice) for choice in self.choices]
            self.fail(f"'{value}' is not one of {', '.join(words)}{did_you_mean(str(value), words)}", param, ctx)
        return value


class Text(click.types.StringParamType):
    """A nonempty text, or a path that need not exist.

    Args:
        words: common values, for completion only.
        path: "file" or "dir" for a path: what a shell completes.
        read: mpilaunch reads the file; a config file names it relative to itself.
    """

    wanted = "text"

    def __init__(self, *words: str, path: str = "", read: bool = False) -> None:
        self.words = words
        self.path = path
        self.read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text."""
        if value == "":
            self.fail("the value is empty", param, ctx)
        if "\0" in value:
            self.fail("the value contains a NUL character", param, ctx)
        return value

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Return the nonempty lines of a variable: each is one value of an option that may be repeated."""
        return [line for line in rv.splitlines() if line]

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the matching common values, or let the shell complete a path."""
        if self.path:
            return [CompletionItem(incomplete, type=self.path)]
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


FLAG = YesNo()


class Option(click.Option):
    """One option of the command line.

    Every long flag is also declared with one dash, as users of mpirun write it. Every flag without a value has an opposite
    (`--no-quiet`), so that the command line can undo the setting of a file or a variable.

    Args:
        flags: its long flag, whose name is also its config key, then its other flags; "--copy/--no-copy" names the opposite.
        group: the help topic that lists it.
        shorthands: flags without an argument, and the value that each stands for.
        words: the number of arguments of one use; two are joined by "=".
        configurable: a config file and the environment may set it.
        local: in a job of several programs, it applies only to the program that follows it.
        basic: its description in the short help; True for that of `help`, "" for an option that the short help leaves out.
        joins: a value that begins with ":" is appended to an earlier value instead of replacing it.
    """

    def __init__(
        self,
        *flags: str,
        group: str,
        help: str,
        type: _AnyType = Text(),  # noqa: B008
        default: Any = None,
        multiple: bool = False,
        shorthands: Mapping[str, str] | None = None,
        words: int = 1,
        configurable: bool = True,
        local: bool = False,
        basic: str | bool = "",
        joins: bool = False,
        **attributes: Any,
    ) -> None:
        long, slash, opposite = flags[0].partition("/")
        self.key = long[2:]
        self.group = group
        self.shorthands = dict(shorthands or {})
        self.words = words
        self.configurable = configurable
        self.local = local
        self.basic = help if basic is True else basic or ""
        self.joins = joins
        is_flag = type is FLAG
        if is_flag and default is None and not opposite:
            default = False
        named = [long, *flags[1:], *self.shorthands]
        # In the order of the help: single letters first.
        self.flags = tuple(dict.fromkeys([*(flag for flag in named if flag[1] != "-"), *named, *([opposite] if slash else [])]))
        opposite = opposite or f"--no-{self.key}"
        declared = [self.key.replace("-", "_"), *dict.fromkeys(spelling for flag in named for spelling in _spellings(flag))]
        if is_flag:
            declared += [f"{first}/{second}" for first, second in zip(_spellings(long), _spellings(opposite), strict=True)]
            declared = list(dict.fromkeys(flag for flag in declared if flag not in _spellings(long)))
        super().__init__(
            declared,
            help=help,
            type=type,
            default=() if multiple else default,
            multiple=multiple,
            is_flag=True if is_flag else None,
            allow_from_autoenv=configurable,
            **attributes,
        )

    @property
    def flag(self) -> str:
        """The long flag, which messages use as the name of the option."""
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        """The environment variable that sets the option."""
        return f"{VARIABLES}_{self.key.replace('-', '_').upper()}"

    @property
    def choices(self) -> tuple[str, ...]:
        """The accepted words; empty if the option accepts any text."""
        return tuple(self.type.choices) if isinstance(self.type, OneOf) else ()

    @property
    def reads_file(self) -> bool:
        """Whether the value names a file that mpilaunch reads, relative to the config file that names it."""
        return isinstance(self.type, Text) and self.type.read

    @property
    def value_hint(self) -> str:
        """The hint for an invalid value."""
        if isinstance(self.type, Seconds):
            return "write seconds, or a number with s, m, h or d: 90, 90s, 5m, 1h"
        return f"{self.flag}: {self.help}"

    def fixed_value(self, flag: str) -> str | None:
        """Return the value that a flag stands for without an argument; None if the flag takes an argument."""
        if self.is_flag:
            return "no" if flag in self.secondary_opts else "yes"
        return next((value for short, value in self.shorthands.items() if flag in _spellings(short)), None)


def _spellings(flag: str) -> tuple[str, ...]:
    """Return a flag with two dashes and with one; `-np` is `--np`, but `-n` is never `--n`."""
    return (flag, flag[1:]) if flag.startswith("--") and len(flag) > 3 else (flag,)
