"""The help: written by click from the table of options.

The only importer of click, which a launch does without: loading it would cost a short launch a quarter of its time.
"""

from __future__ import annotations

import click

from mpilaunch.options import GROUPS, OPTIONS, Option

EXAMPLES = (
    ("mpilaunch -np 4 train.py", "4 ranks on this machine"),
    ("mpilaunch -H node01:8,node02:8 train.py --lr 0.1", "16 ranks on two nodes, over ssh"),
    ("mpilaunch --hostfile hosts.txt --dry-run train.py", "where each rank would go; starts nothing"),
    ("mpilaunch -N 1 -H node[01-32] --tag host uptime", "one command on each of 32 nodes"),
)
WIDTH = 100
LAUNCHERS = {"openmpi": "Open MPI's mpirun", "hydra": "MPICH's mpiexec (Hydra)", "intel": "Intel MPI's mpiexec"}


def full_help() -> str:
    """Return the whole help, grouped by topic."""
    formatter = click.HelpFormatter(max_width=WIDTH)
    formatter.write("mpilaunch starts one program as N ranks on many nodes and brings everything back.\n\n")
    formatter.write_usage("mpilaunch", "[OPTIONS] PROGRAM [ARGUMENTS...]")
    write_examples(formatter)
    for group in GROUPS:
        with formatter.section(group):
            rows = [(_spelling(option), _description(option)) for option in OPTIONS if option.group == group]
            formatter.write_dl(rows, col_max=34)
    formatter.write_paragraph()
    formatter.write_text(
        "Long options may have one dash, as mpirun's: -np 4, -hostfile FILE. TIME is seconds, or a number with s, m, h "
        "or d: 90, 5m, 1h. Each option but those that only look can also stand in a config file (np: 4) or in the "
        "environment (MPILAUNCH_NP=4); the command line wins, then the environment, then --config FILE or "
        "~/.config/mpilaunch/config.yaml. Several programs in one job: -np 1 ./a : -np 2 ./b. The options of other "
        "launchers are understood too: --help openmpi, --help hydra, --help intel."
    )
    return formatter.getvalue().rstrip()


def dialect_help(dialect: str) -> str:
    """Return what the options of another launcher mean that are not spelled as ours: "openmpi", "hydra" or "intel"."""
    from mpilaunch.dialects import ROWS, meaning, spelling

    formatter = click.HelpFormatter(max_width=WIDTH)
    formatter.write(f"Options of {LAUNCHERS[dialect]} that mpilaunch spells otherwise; all others are in mpilaunch --help.\n\n")
    rows = [(spelling(row), meaning(row).replace("`", "")) for row in ROWS if dialect in row.dialects]
    formatter.write_dl(rows, col_max=34)
    formatter.write_paragraph()
    formatter.write_text("Each may have one dash or two. docs/dialects.md has more.")
    return formatter.getvalue().rstrip()


def short_help() -> str:
    """Return what somebody reads who typed `mpilaunch` alone."""
    formatter = click.HelpFormatter(max_width=WIDTH)
    formatter.write("mpilaunch starts one program as N ranks on many nodes and brings everything back.\n")
    write_examples(formatter)
    formatter.write("\nmpilaunch --help lists all options; --dry-run shows what a command would do.\n")
    return formatter.getvalue()


def write_examples(formatter: click.HelpFormatter) -> None:
    """Write commands that work, and what each does."""
    with formatter.section("Examples"):
        formatter.write_dl(EXAMPLES, col_max=60)


def _spelling(option: Option) -> str:
    if option.said_by(option.flag) is not None:
        return ", ".join(option.flags)
    flags = ", ".join(flag for flag in option.flags if flag not in option.shorthands)
    return f"{flags} {option.metavar or '|'.join(option.choices)}"


def _description(option: Option) -> str:
    notes = []
    if option.said_by(option.flag) is None:
        notes += [f"{flag} says {value}" for flag, value in option.shorthands.items()]
    if option.repeatable:
        notes.append("may be repeated")
    if option.default not in (None, False, 0, ()):
        notes.append(f"default {option.default:g}" if isinstance(option.default, float) else f"default {option.default}")
    return option.help + (f" [{'; '.join(notes)}]" if notes else "")
