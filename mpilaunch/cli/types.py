"""The class of an option, its uses, and the types of its value: a type parses a text, words the error and completes it.

They extend click's option and types. A type never knows the source of a value: `command` adds it to the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mpilaunch.job.settings import Layer
from mpilaunch.text import did_you_mean, is_whole_number, seconds_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from mpilaunch.job.servers.ready import ReadyUrl

VARIABLES = "MPILAUNCH"
"""Prefix of the environment variables that set options."""

_FLAG_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class Origin(NamedTuple):
    """The source of a value: "jobs.yaml:3", and for errors "jobs.yaml:3:1: np"."""

    source: str
    place: str
    layer: Layer


class YesNo(click.types.BoolParamType):
    """A flag; in the environment and after "=", a word such as yes or no."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.lower() not in _FLAG_WORDS:
            self.fail(f"'{value}' is neither yes nor no", param, ctx)
        return _FLAG_WORDS[value.lower()] if isinstance(value, str) else value


class Text(click.types.StringParamType):
    """A nonempty text, or a path that need not exist.

    Attributes:
        wanted: what messages call a value of this type.
        words: common values, which a shell completes.
        path: "file" or "dir" for a path: what a shell completes.
        read: mpilaunch reads the file; a config file names it relative to itself.
    """

    wanted = "text"

    def __init__(self, *words: str, path: str = "", read: bool = False) -> None:
        self.words = words
        self.path = path
        self.read = read

    def parse(self, text: str) -> Any:
        """Return the value of a text; raises ValueError with the reason."""
        if not text:
            raise ValueError("the value is empty")
        if "\0" in text:
            raise ValueError("the value contains a NUL character")
        return text

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value; a default is one already."""
        try:
            return self.parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Return the nonempty lines of a variable: each is one value of an option that may be repeated."""
        return list(filter(None, rv.splitlines()))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the matching words, or let the shell complete a path."""
        from click.shell_completion import CompletionItem

        if self.path:
            return [CompletionItem(incomplete, type=self.path)]
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


OTHER_NAMES = {"tensorflow": "tf", "keras": "tf", "pytorch-lightning": "lightning", "slurm": "srun"}
"""Words that users write for one that is not similar."""


class OneOf(Text):
    """One of a few words; a text follows those that end with a colon."""

    def parse(self, text: str) -> str:
        if text not in self.words and not text.startswith(tuple(word for word in self.words if word.endswith(":"))):
            raise ValueError(f"'{text}' is not one of {', '.join(self.words)}{_meant(text, self.words)}")
        return text


def _meant(text: str, words: Sequence[str]) -> str:
    """Return "; did you mean WORD?", or ""."""
    other = OTHER_NAMES.get(text.lower())
    return f"; did you mean {other}?" if other in words else did_you_mean(text, words)


class SomeOf(Text):
    """Some of a few words, separated by commas."""

    def parse(self, text: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(OneOf(*self.words).parse, text.split(","))))


class Network(Text):
    """A network with its prefix, the name of an interface, or one of the words."""

    wanted = "a network or an interface"

    def parse(self, text: str) -> str:
        super().parse(text)
        # Linux: 15 characters, without "/" and blanks; ":" is of IPv6 addresses, and was of aliases.
        if 0 < len(text) < 16 and not set(text) & set("/: \t\n") and not text.replace(".", "").isdigit():
            return text
        import ipaddress  # 3 ms, and few launches need it

        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise ValueError(f"'{text}' is neither a network like 10.99.0.0/24 nor an interface like eth0") from None
        if "/" not in text:
            raise ValueError(f"'{text}' is an address; a network has a prefix: {text}/24")
        return str(network)


class Ready(Text):
    """A URL of HTTP, as `ReadyUrl`."""

    wanted = "a URL"

    def parse(self, text: str) -> ReadyUrl:
        from mpilaunch.job.servers.ready import parse_ready_url  # few jobs have one

        return parse_ready_url(super().parse(text))


class Number(Text):
    """A whole number in a range, or one of the words, in upper case."""

    wanted = "a whole number"

    def __init__(self, *words: str, min: float = 0, max: float | None = None) -> None:
        super().__init__(*words)
        self.min = min
        self.max = max

    def number(self, text: str) -> float | None:
        """Return the number that a text means, None if it means none."""
        return int(text) if is_whole_number(text.removeprefix("-"), 15) else None

    def parse(self, text: str) -> float | str:
        """Return the number, or the word."""
        if text.upper() in self.words:
            return text.upper()
        value = self.number(text)
        if value is None:
            raise ValueError(f"'{text}' is not {' or '.join((self.wanted, *self.words))}")
        if value < self.min or (self.max is not None and value > self.max):
            allowed = f"{self.min:g} or more" if self.max is None else f"{self.min:g} to {self.max:g}"
            raise ValueError(f"{value:g} is out of range: {allowed}")
        return value


class Seconds(Number):
    """A duration: seconds, or a number with s, m, h or d."""

    wanted = "a time"

    def number(self, text: str) -> float | None:
        return seconds_of(text)


class Option(click.Option):
    """One option of the command line.

    Every long flag is also declared with one dash, as users of mpirun write it. Every flag without a value has an opposite
    (`--no-quiet`), so that the command line can undo the setting of a file or a variable.

    Args:
        group: the help topic that lists it.
        flags: its long flag, whose name is also its config key, then its other flags; "--copy/--no-copy" names the opposite.
        metavar: the names of its arguments, "" for a flag or a choice; the values of two are joined by "=".
        type: by default, an option with arguments takes texts, and one without is a flag.
        shorthands: flags without an argument, and the value that each stands for.
        configurable: a config file and the environment may set it.
        local: in a job of several programs, it applies only to the program that follows it.
        basic: its description in the short help; True for that of `help`, "" for an option that the short help leaves out.
        joins: a value that begins with ":" is appended to an earlier value instead of replacing it.
    """

    def __init__(
        self,
        group: str,
        flags: str,
        metavar: str,
        help: str,
        type: Text | None = None,
        *,
        default: Any = None,
        multiple: bool = False,
        shorthands: Mapping[str, str] | None = None,
        configurable: bool = True,
        local: bool = False,
        basic: str | bool = "",
        joins: bool = False,
    ) -> None:
        first, *others = flags.split()
        long, _, opposite = first.partition("/")
        self.key = long[2:]
        self.group = group
        self.shorthands = dict(shorthands or {})
        self.words = max(1, len(metavar.split()))
        self.configurable = configurable
        self.local = local
        self.basic = help if basic is True else basic or ""
        self.joins = joins
        is_flag = not metavar and type is None
        named = list(dict.fromkeys([long, *others, *self.shorthands]))
        # In the order of the help: single letters first.
        self.flags = tuple(sorted(named, key=lambda flag: flag.startswith("--"))) + ((opposite,) if opposite else ())
        declared = [spelling for flag in named[is_flag:] for spelling in _spellings(flag)]
        if is_flag:
            default = False if default is None and not opposite else default
            declared += map("/".join, zip(_spellings(long), _spellings(opposite or f"--no-{self.key}"), strict=True))
        super().__init__(
            [self.key.replace("-", "_"), *declared],
            help=help,
            type=YesNo() if is_flag else type or Text(),
            metavar=metavar or None,
            default=() if multiple else default,
            multiple=multiple,
            is_flag=is_flag or None,
            allow_from_autoenv=configurable,
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
        return self.type.words if isinstance(self.type, (OneOf, SomeOf)) else ()

    @property
    def value_hint(self) -> str:
        if isinstance(self.type, Seconds):
            return "write seconds, or a number with s, m, h or d: 90, 90s, 5m, 1h"
        return f"{self.flag}: {self.help}"

    def fixed_value(self, flag: str) -> str | None:
        """Return the value that a flag stands for without an argument; None if the flag takes an argument."""
        if self.is_flag:
            return "no" if flag in self.secondary_opts else "yes"
        return next((value for short, value in self.shorthands.items() if flag in _spellings(short)), None)

    def spelling(self, flag: str) -> str:
        """Return a flag as the table of options spells it: a long one with two dashes."""
        return flag if flag.startswith("--") or f"-{flag}" not in (*self.opts, *self.secondary_opts) else f"-{flag}"


def _spellings(flag: str) -> tuple[str, ...]:
    """Return a flag with two dashes and with one; `-np` is `--np`, but `-n` is never `--n`."""
    return (flag, flag[1:]) if flag.startswith("--") and len(flag) > 3 else (flag,)


class OptionUse(NamedTuple):
    """One use of an option: its value as text, its flag as written, and the program or line it is in, for errors."""

    option: Option
    value: str
    flag: str
    place: str = ""

    @property
    def origin(self) -> Origin:
        """The source of the value: our long flag, or the flag of another launcher as written."""
        own = self.flag in (*self.option.opts, *self.option.secondary_opts)
        source = self.option.flag if own else self.flag
        return Origin(source, f"{self.place}: {self.flag}" if self.place else self.flag, Layer.COMMAND_LINE)

    @property
    def word(self) -> str:
        """The word for click."""
        if not self.option.is_flag:
            return f"{self.option.flag}={self.value}"
        return self.option.flag if self.option.type.convert(self.value, self.option, None) else self.option.secondary_opts[0]


class OptionUses(list[OptionUse]):
    """The options of a job or of one program, in order."""

    def add(self, use: OptionUse) -> None:
        """Append an option; merge an option that joins with its earlier use."""
        earlier = self.last(use.option.key) if use.option.joins else None
        if earlier is not None:
            # Modifiers follow the policy, whichever comes first: mpirun also has them as separate options.
            old, new = earlier.value, use.value
            self.remove(earlier)
            use = use._replace(value=old + new if new.startswith(":") else new + old if old.startswith(":") else new)
        self.append(use)

    def last(self, key: str) -> OptionUse | None:
        return next((use for use in reversed(self) if use.option.key == key), None)

    @property
    def argv(self) -> list[str]:
        """The words for click; raises click.BadParameter if a flag's value is neither yes nor no."""
        return [use.word for use in self]
