"""Notes on a valid command line that most likely does not mean what its user wants. Pure.

A note is said whatever comes of the job, and never with -q, so it is for words that can hardly be meant. `hints` has the hints
for a job that failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mpilaunch.cli.config import NOT_OPTIONS
from mpilaunch.cli.dialects import SEPARATE
from mpilaunch.cli.options import OPTIONS
from mpilaunch.cli.types import VARIABLES, OptionUses
from mpilaunch.hosts.allocation import Node
from mpilaunch.job.environment.templates import FIELDS
from mpilaunch.job.settings import Layer, Section, Settings

MISPLACED = frozenset(
    {"-np", "--np", "-hostfile", "--hostfile", "-machinefile", "--machinefile", "-npernode", "--npernode", "-ppn"}
)
"""Our options that few programs have."""
LAUNCHERS = SEPARATE.union(
    ("mpilaunch", "mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpirun.mpich", "orterun", "prterun", "prun"),
    ("ssh", "sudo", "env", "docker", "podman"),
)
"""Programs to whose arguments such options may belong, or those of a program that they start."""
LEAST_PORT = 1024
"""Slots of a node in --host from which the number was rather meant as a port."""
_FIELD = re.compile(r"\{(?:" + "|".join(FIELDS) + r")\}")
_PLAIN = re.compile(r"[\w./:=,@%+{}-]*", re.ASCII)
"""Words that are no code of another language."""


def misplaced_options(programs: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a note for each program whose arguments are likely to include an option meant for mpilaunch."""
    for program in programs:
        for place, word in enumerate(program):
            if LAUNCHERS.intersection((word, word.rpartition("/")[2])):
                break
            flag = word.partition("=")[0]
            if place and flag in MISPLACED:
                yield f"{program[0]} gets {flag} as its argument: options of mpilaunch must precede the program"
                break


def forgotten_template(sections: Iterable[Section], template: bool) -> Iterator[str]:
    """Yield a note for each program with a field of a template among its arguments, without --template."""
    for section in sections:
        own = section.settings.get("template")
        if template or (own is not None and own.value):
            continue
        for word in section.program[1:]:
            if (found := _FIELD.search(word)) and _PLAIN.fullmatch(word):
                yield f"{section.program[0]} gets {found[0]} as it stands: --template fills it in"
                break


def ports_as_slots(nodes: Iterable[Node]) -> Iterator[str]:
    """Yield a note for the first node whose number of slots looks like a port."""
    for node in nodes:
        if node.origin == "--host" and len(node.slots) >= LEAST_PORT:
            count = len(node.slots)
            yield f"{node.name}:{count} means {count} slots; a port is set in a hostfile: {node.name} port={count}"
            return


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a note for each variable that begins like that of an option and belongs to none; `config` refuses similar names."""
    prefix = f"{VARIABLES}_"
    known = {option.variable for option in OPTIONS}.union(prefix + word for word in NOT_OPTIONS)
    for name in environ:
        if name.startswith(prefix) and name not in known:
            yield f"the variable {name} has no effect: no option has this name (mpilaunch --help all)"


def unlike_open_mpi(settings: Settings) -> Iterator[str]:
    """Yield a note for each option under Open MPI's names or options that maps ranks otherwise than mpirun 4.1 does.

    Raises UsageError for a wrong --map-by.
    """
    if settings["dialect"] not in ("mpi", "openmpi"):
        return
    from mpilaunch.placement.map_by import span_of  # other names and verbs do without it

    if kind := span_of(settings["map-by"]):
        of_all = f"the {kind.replace('cache', ' cache')}s of all nodes"
        yield f"--map-by {settings['map-by']}: {of_all} take ranks in turn; Open MPI 4 numbers ranks node by node"
    if settings["np"] is None and settings.layer("host") == settings.layer("hostfile") == Layer.COMMAND_LINE:
        hosts = (host for text in settings["host"] for host in re.sub(r"\[[^]]*\]", "", text).split(","))
        if not all(":" in host for host in hosts):
            yield "--host beside --hostfile: hosts keep their slots of the hostfile; Open MPI 4 starts one rank on each"


def overridden(uses: OptionUses) -> Iterator[str]:
    """Yield a note for each option that is given twice by different flags, with different values."""
    last = {use.option.key: use for use in uses}
    for use in uses:
        other = last[use.option.key]
        if use.option.multiple or use.option.joins or not (use.flag.startswith("-") and other.flag.startswith("-")):
            continue
        if use.flag != other.flag and use.value != other.value and use.place == other.place:
            value = "" if use.option.is_flag else f" {use.value}"
            yield f"{other.flag} overrides {use.flag}{value}: both set --{use.option.key}"
