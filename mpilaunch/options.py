"""The options: each one declared once, as a row of a table.

Pure. Flags, help, config key, the variable MPILAUNCH_NAME, the checks of a value and its provenance all derive from the row.
Every long option is also understood with one dash (`-np`, `-hostfile`), as mpirun's users write it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mpilaunch.errors import UsageError
from mpilaunch.spelling import did_you_mean

Value = bool | int | float | str | tuple[str, ...] | None

RANKS = "Ranks and nodes"
PROGRAM = "The program"
OUTPUT = "Output"
DEVICES = "GPUs and CPUs"
REACH = "Reaching the nodes"
LIMITS = "Time limits"
LOOK = "Look before you launch"
GROUPS = (RANKS, PROGRAM, OUTPUT, DEVICES, REACH, LIMITS, LOOK)


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: its long flag without dashes, and its config key.
        group: the topic of the help it stands under.
        help: a phrase without full stop; the default and the choices are added to it.
        kind: "flag", "number", "seconds", "text" or "file": a file to read, which a config file names relative to itself.
        metavar: stands for its argument in the help.
        default: its value when nobody says one; in an option that may be repeated always the empty tuple.
        choices: the texts that are allowed; empty for any text.
        least: the smallest number, or number of seconds, that is allowed.
        most: the largest.
        short: one-letter flags.
        aliases: other long flags.
        shorthands: flags without an argument, and the value that each says.
        repeatable: each use adds one value.
        words: how many arguments one use takes; two are joined by "=".
        configurable: it may stand in a config file and in the environment.
    """

    name: str
    group: str
    help: str
    kind: str = "text"
    metavar: str = ""
    default: Value = None
    choices: tuple[str, ...] = ()
    least: float = 0
    most: float | None = None
    short: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    shorthands: Mapping[str, Value] = field(default_factory=dict)
    repeatable: bool = False
    words: int = 1
    configurable: bool = True

    @property
    def flag(self) -> str:
        """Its long flag: the name it has in messages."""
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "MPILAUNCH_" + self.name.replace("-", "_").upper()

    @property
    def flags(self) -> tuple[str, ...]:
        """Every flag of it in the order of the help, without the one-dash spellings of the long ones."""
        return tuple(dict.fromkeys((*self.short, self.flag, *self.aliases, *self.shorthands)))

    def said_by(self, flag: str) -> Value:
        """Return the value that the flag says by itself; None when it takes an argument."""
        return self.shorthands.get(flag, True if self.kind == "flag" else None)


@dataclass(frozen=True)
class Setting:
    """The value of an option and who said it: "--np", "MPILAUNCH_NP", "jobs.yaml:3" or "default".

    `layer` orders them: 0 default, 1 config file, 2 environment, 3 command line.
    """

    value: Value
    provenance: str = "default"
    layer: int = 0


@dataclass(frozen=True)
class Settings:
    """The setting of every option, by name; `settings["np"]` is the value."""

    by_name: Mapping[str, Setting]

    def __getitem__(self, name: str) -> Any:
        return self.by_name[name].value

    def provenance(self, name: str) -> str:
        """Return who said the value."""
        return self.by_name[name].provenance

    def layer(self, name: str) -> int:
        """Return the layer that said the value."""
        return self.by_name[name].layer


OPTIONS = (
    Option("np", RANKS, "ranks to start; without it one per slot", "number", "N", least=1, short=("-n",)),
    Option(
        "host",
        RANKS,
        "where to run: a:2,b,node[01-16]:4 (name:slots; 'local' is this machine); with a hostfile, which of its hosts",
        metavar="HOSTS",
        default=(),
        short=("-H",),
        aliases=("--hosts",),
        repeatable=True,
    ),
    Option(
        "hostfile",
        RANKS,
        "read hosts from a file: 'node01 slots=8', 'node01:8' and all other dialects",
        kind="file",
        metavar="FILE",
        default=(),
        short=("-f",),
        aliases=("--machinefile",),
        repeatable=True,
    ),
    Option(
        "npernode",
        RANKS,
        "exactly N ranks on each node",
        "number",
        "N",
        least=1,
        short=("-N",),
        aliases=("--ppn",),
        shorthands={"--pernode": 1},
    ),
    Option(
        "map-by",
        RANKS,
        "fill a node before the next (slot), deal the ranks out (node), or N on each node (ppr:N:node)",
        metavar="POLICY",
        default="slot",
    ),
    Option("rank-by", RANKS, "number the ranks node by node, or round the nodes", choices=("slot", "node")),
    Option(
        "oversubscribe",
        RANKS,
        "allow more ranks than slots",
        "flag",
        default=False,
        shorthands={"--nooversubscribe": False},
    ),
    Option("slot-map", RANKS, "read the GPUs and CPUs of each slot from a YAML file", "file", "FILE"),
    Option(
        "export",
        PROGRAM,
        "give the ranks a variable: NAME, NAME=VALUE or PREFIX_*",
        metavar="NAME[=VALUE]",
        default=(),
        short=("-x",),
        repeatable=True,
    ),
    Option(
        "env-file",
        PROGRAM,
        "give the ranks the NAME=VALUE lines of a file",
        kind="file",
        metavar="FILE",
        default=(),
        repeatable=True,
    ),
    Option("no-forward", PROGRAM, "forward only what -x and --env-file name", "flag", default=False),
    Option(
        "mca",
        PROGRAM,
        "set a parameter of Open MPI (OMPI_MCA_KEY)",
        metavar="KEY VALUE",
        default=(),
        repeatable=True,
        words=2,
    ),
    Option("wdir", PROGRAM, "directory of the ranks; without it this one, where it exists", metavar="DIR", aliases=("--wd",)),
    Option("python", PROGRAM, "interpreter for scripts that are not executable", metavar="PATH"),
    Option(
        "mpi",
        PROGRAM,
        "what MPI programs are offered to find each other",
        default="auto",
        choices=("auto", "pmi1", "none"),
    ),
    Option("stdin", PROGRAM, "who gets standard input: a rank's number, all or none", "text", "WHO", "0"),
    Option("master-addr", PROGRAM, "MASTER_ADDR; without it an address of rank 0's node", metavar="ADDR"),
    Option("master-port", PROGRAM, "MASTER_PORT; without it a free one", "number", "PORT", least=1, most=65535),
    Option(
        "tag",
        OUTPUT,
        "put this before each line: rank, host, time, ompi, or a template like '{host}:{rank:3} '",
        metavar="FORMAT",
        shorthands={"--tag-output": "ompi"},
    ),
    Option("timestamp-output", OUTPUT, "put the time before each line", "flag", default=False),
    Option("output-filename", OUTPUT, "write each rank's output to DIR/rank-N.out and .err too", metavar="DIR"),
    Option("merge-stderr-to-stdout", OUTPUT, "send the ranks' stderr to their stdout", "flag", default=False),
    Option("fold", OUTPUT, "print equal output once, at the end, behind the names of its nodes", "flag", default=False),
    Option("report", OUTPUT, "write plan, bindings, times and exits of all ranks as JSON", metavar="FILE"),
    Option("quiet", OUTPUT, "say nothing but the ranks' output and errors", "flag", default=False, short=("-q",)),
    Option(
        "verbose",
        OUTPUT,
        "tell what happens; -vv more",
        "number",
        default=0,
        most=2,
        short=("-v",),
        shorthands={"-v": 1, "--verbose": 1, "-vv": 2},
    ),
    Option("gpus-per-rank", DEVICES, "GPUs of each rank", "number", "N"),
    Option(
        "gpu-bind",
        DEVICES,
        "a rank sees its slot's GPUs, the same as device 0, all GPUs of its node, or whatever it finds",
        choices=("slot", "virtual", "node", "none"),
    ),
    Option("oversubscribe-gpus", DEVICES, "let ranks share a GPU", "flag", default=False),
    Option(
        "bind-to",
        DEVICES,
        "bind each rank to CPUs",
        default="none",
        choices=("none", "hwthread", "core", "socket", "numa"),
    ),
    Option(
        "cpus-per-rank",
        DEVICES,
        "cores, or hardware threads, that each rank is bound to",
        "number",
        "N",
        1,
        least=1,
        aliases=("--cpus-per-proc",),
    ),
    Option("report-bindings", DEVICES, "say what each rank is bound to", "flag", default=False),
    Option(
        "agent",
        REACH,
        "how to run a command on a node: ssh, openssh, local, or a template like 'tsh ssh {host} {command}'",
        metavar="AGENT",
    ),
    Option("ssh-option", REACH, "a setting of ssh_config", metavar="NAME=VALUE", default=(), repeatable=True),
    Option("insecure-host-keys", REACH, "accept any host key", "flag", default=False),
    Option("fanout", REACH, "nodes contacted at a time", "number", "N", 64, least=1),
    Option("timeout", LIMITS, "end the job after this time; no limit without it", "seconds", "TIME", least=0.1),
    Option("grace", LIMITS, "between SIGTERM and SIGKILL", "seconds", "TIME", 10.0),
    Option("heartbeat", LIMITS, "silence after which a node counts as lost", "seconds", "TIME", 30.0, least=0.5),
    Option("start-timeout", LIMITS, "until every node has answered", "seconds", "TIME", 60.0, least=0.1),
    Option("dry-run", LOOK, "print the plan and start nothing", "flag", default=False, configurable=False),
    Option("json", LOOK, "with --dry-run, as JSON", "flag", default=False, configurable=False),
    Option("display-map", LOOK, "print where each rank goes, then start", "flag", default=False),
    Option(
        "show-env", LOOK, "print the environment of a rank and start nothing", "number", "RANK", configurable=False
    ),
    Option("show-secrets", LOOK, "do not mask passwords and tokens in it", "flag", default=False, configurable=False),
    Option("show-config", LOOK, "print each option's value and who said it", "flag", default=False, configurable=False),
    Option("config", LOOK, "read options from this YAML file", "file", "FILE"),
    Option("allow-run-as-root", LOOK, "accepted and not needed", "flag", default=False),
    Option("version", LOOK, "print the version", "flag", default=False, configurable=False),
    Option("help", LOOK, "print this help", "flag", default=False, short=("-h",), configurable=False),
)
BY_NAME = {option.name: option for option in OPTIONS}
BY_FLAG = {flag: option for option in OPTIONS for flag in option.flags}
DEFAULTS = {option.name: Setting(option.default) for option in OPTIONS}

_NUMBER = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|h|d)?", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FLAG_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def value_from_text(option: Option, text: str, said: str) -> Value:
    """Return one value, as a word of the command line or of the environment gives it; raises UsageError naming `said`."""
    if option.kind == "flag":
        if text.lower() not in _FLAG_WORDS:
            raise _wrong(option, said, f"'{text}' is neither yes nor no")
        return _FLAG_WORDS[text.lower()]
    if option.kind == "number":
        if not _NUMBER.fullmatch(text):
            raise _wrong(option, said, f"'{text}' is not a whole number")
        return int(_in_range(option, int(text), said))
    if option.kind == "seconds":
        match = _TIME.fullmatch(text)
        if match is None:
            raise _wrong(option, said, f"'{text}' is not a time")
        return _in_range(option, float(match[1]) * _SECONDS[match[2] or "s"], said)
    if option.choices and text not in option.choices:
        raise _wrong(option, said, f"'{text}' is not one of {', '.join(option.choices)}{did_you_mean(text, option.choices)}")
    if not text:
        raise _wrong(option, said, "the value is empty")
    if "\0" in text:
        raise _wrong(option, said, "the value has a NUL character in it")
    return text


def value_from_data(option: Option, data: object, said: str) -> Value:
    """Return the value of an option as YAML gives it; raises UsageError naming `said`."""
    if option.repeatable:
        items = data if isinstance(data, list) else [data]
        return tuple(str(value_from_text(option, _scalar_text(option, item, said), said)) for item in items)
    if option.kind == "flag":
        if not isinstance(data, bool):
            raise _wrong(option, said, f"{data!r} is neither true nor false")
        return data
    return value_from_text(option, _scalar_text(option, data, said), said)


def _scalar_text(option: Option, data: object, said: str) -> str:
    # A stray `on` of YAML is a truth value: as text it would be 'True', which nobody wrote.
    if isinstance(data, bool) or not isinstance(data, (str, int, float)):
        raise _wrong(option, said, f"{type(data).__name__} {data!r} where {_wanted(option)} is expected")
    return str(data)


def _in_range(option: Option, number: float, said: str) -> float:
    if number < option.least or (option.most is not None and number > option.most):
        end = f"{option.least:g} to {option.most:g}" if option.most is not None else f"{option.least:g} or more"
        raise _wrong(option, said, f"{number:g} is out of range: {end}")
    return number


def _wanted(option: Option) -> str:
    return {"number": "a whole number", "seconds": "a time"}.get(option.kind, "text")


def _wrong(option: Option, said: str, what: str) -> UsageError:
    hints = {"seconds": "write seconds, or a number with s, m, h or d: 90, 90s, 5m, 1h"}
    return UsageError("option-value", f"{said}: {what}", hint=hints.get(option.kind, f"{option.flag}: {option.help}"))
