"""The help texts: one screen for most jobs, and topics for the rest; made from the table of options with click's formatter."""

from __future__ import annotations

from collections.abc import Iterable

import click

from mpilaunch.cli import dialects, verbs
from mpilaunch.cli.options import GROUPS, OPTIONS
from mpilaunch.cli.types import Option
from mpilaunch.errors import UsageError
from mpilaunch.text import did_you_mean

EXAMPLES = (
    ("mpilaunch -np 4 train.py", "4 ranks on this machine"),
    ("mpilaunch -H node01:8,node02:8 train.py --lr 0.1", "16 ranks on two nodes"),
    ("mpilaunch --hostfile hosts.txt --dry-run train.py", "print the node of each rank, start nothing"),
    ("mpilaunch -N 1 -H 'node[01-32]' --tag host uptime", "one command on 32 nodes"),
)
WIDTH = 100
LEFT_COLUMN = 34
UNBROKEN = "\N{NON-BREAKING HYPHEN}"
"""Replaces hyphens while click wraps lines, because click cannot be told not to break there."""
SUMMARY = "mpilaunch starts a program as N ranks on many nodes, and returns their output and exit code."
MORE = (
    f"--help TOPIC prints all options of a topic: {', '.join(GROUPS)}; --help all prints all options. Those "
    "of other launchers: openmpi, hydra, intel, torchrun, srun, ..."
)
REST = (
    "Long options may have one dash, as for mpirun: -np 4, -hostfile FILE. TIME is seconds, or a number with s, m, h or d: 90, "
    "5m, 1h. --no-NAME switches a flag off. Most options can also be set in a config file (np: 4) or in the environment "
    "(MPILAUNCH_NP=4); the command line overrides the environment, which overrides --config FILE or "
    "~/.config/mpilaunch/config.yaml. Several programs in one job: -np 1 ./a : -np 2 ./b. mpilaunch also accepts the options "
    f"of other launchers: --help {', '.join(dialects.NAMES)}."
)


class _Formatter(click.HelpFormatter):
    """Click's formatter in our width; no line breaks at a hyphen, or `--tag-output` would end up on two lines."""

    def __init__(self) -> None:
        super().__init__(max_width=WIDTH)

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = LEFT_COLUMN, col_spacing: int = 2) -> None:
        super().write_dl([(term, text.replace("-", UNBROKEN)) for term, text in rows], col_max, col_spacing)

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", UNBROKEN))

    def getvalue(self) -> str:
        return super().getvalue().replace(UNBROKEN, "-").strip()


def text(topic: str = "", verb: str = "run") -> str:
    """Return the help of a topic ("all", a group of options, a dialect or a verb), or without a topic that of `verb`.

    Raises UsageError for an unknown topic.
    """
    topic = topic or verb
    if topic in dialects.NAMES:
        return _dialect(topic)
    if topic in verbs.NAMES:
        return _verb(topic)
    if topic in GROUPS:
        formatter = _Formatter()
        _write_group(formatter, topic)
        return formatter.getvalue()
    if topic == "all":
        return _all()
    topics = ("all", *GROUPS, *dialects.NAMES, *verbs.NAMES)
    message = f"--help: unknown topic '{topic}'{did_you_mean(topic, topics)}"
    raise UsageError("option-value", message, hint=f"the topics are {', '.join(topics)}")


def topic_of(name: str) -> str:
    """Return the topic under a command name: that of a launcher which is no MPI's, else none."""
    return name if name in dialects.SEPARATE else ""


def short() -> str:
    """Return the help that `mpilaunch` prints without arguments."""
    formatter = _Formatter()
    formatter.write(f"{SUMMARY}\n")
    _write_examples(formatter)
    formatter.write("\nmpilaunch --help lists the common options; --dry-run prints the plan of a command and starts nothing.\n")
    return formatter.getvalue()


def _verb(name: str) -> str:
    """Return the help of a verb; that of `run` is the help of mpilaunch."""
    module = verbs.module_of(name)
    formatter = _Formatter()
    if name == "run":
        formatter.write(f"{SUMMARY}\n\nUsage: {module.USAGE}\n")
        formatter.write(f"       mpilaunch VERB --help, where VERB is {', '.join(verbs.NAMES[1:])}\n")
        _write_examples(formatter)
        with formatter.section("Options"):
            formatter.write_dl([(_spelling(option, brief=True), option.basic) for option in OPTIONS if option.basic])
    else:
        formatter.write(f"{module.USAGE}: {module.SUMMARY}\n")
        command = verbs.command_of(name)
        own = [option for option in (command.params if command else verbs.options_of(name)) if isinstance(option, Option)]
        if own:
            with formatter.section("Options"):
                formatter.write_dl([(_spelling(option), _description(option)) for option in own])
        if command:
            return formatter.getvalue()
        for topic in module.TOPICS:
            _write_group(formatter, topic)
    formatter.write_paragraph()
    formatter.write_text(MORE)
    return formatter.getvalue()


def _all() -> str:
    formatter = _Formatter()
    formatter.write(f"{SUMMARY}\n\n")
    formatter.write_usage("mpilaunch", "[OPTIONS] PROGRAM [ARGUMENTS...]")
    with formatter.section("Verbs"):
        others = map(verbs.module_of, verbs.NAMES[1:])
        formatter.write_dl([(other.USAGE, other.SUMMARY) for other in others], col_max=60)
    _write_examples(formatter)
    for topic in GROUPS:
        _write_group(formatter, topic)
    formatter.write_paragraph()
    formatter.write_text(REST)
    return formatter.getvalue()


def _dialect(name: str) -> str:
    """Return the options of another launcher that have other names here, and their meanings."""
    from mpilaunch.cli.dialects.table import meaning, of_name, spelling

    dialect = of_name(name)
    formatter = _Formatter()
    formatter.write(f"Usage: {dialect.usage}\n\n" if dialect.usage else "")
    formatter.write(f"Options of {dialect.title} with other names in mpilaunch; all others are in mpilaunch --help all.\n\n")
    formatter.write_dl([(spelling(row, name), meaning(row).replace("`", "")) for row in dialect.rows])
    formatter.write_paragraph()
    one = "" if name in dialects.SEPARATE else "Each may have one dash or two. "
    formatter.write_text(f"{one}See also docs/dialects.md.")
    return formatter.getvalue()


def _write_examples(formatter: _Formatter) -> None:
    with formatter.section("Examples"):
        formatter.write_dl(EXAMPLES, col_max=60)


def _write_group(formatter: _Formatter, topic: str) -> None:
    with formatter.section(GROUPS[topic]):
        formatter.write_dl([(_spelling(option), _description(option)) for option in OPTIONS if option.group == topic])


def _spelling(option: Option, *, brief: bool = False) -> str:
    """Return the flags of an option, or if `brief` its first short flag and its long one, with its argument."""
    takes_value = option.fixed_value(option.flag) is None
    flags = [flag for flag in option.flags if not takes_value or flag not in option.shorthands]
    if brief:
        flags = [*[flag for flag in flags if not flag.startswith("--")][:1], option.flag]
    return ", ".join(flags) + (f" {option.metavar or '|'.join(option.choices)}" if takes_value else "")


def _description(option: Option) -> str:
    notes = [] if option.fixed_value(option.flag) else [f"{flag} means {value}" for flag, value in option.shorthands.items()]
    if option.multiple:
        notes.append("may be repeated")
    if option.default not in (None, False, 0, ()):
        notes.append(f"default {option.default:g}" if isinstance(option.default, float) else f"default {option.default}")
    return str(option.help) + (f" [{'; '.join(notes)}]" if notes else "")
