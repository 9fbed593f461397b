"""Hints of `run` for a command line that most likely does not do what its user wants.

Loaded only with -v, or by a launch that fails or whose ranks get no input; a hint never changes the exit code. `job.hints` has
the hints for the messages of ranks.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from itertools import takewhile

from mpilaunch.cli.verbs import NAMES
from mpilaunch.text import closest

NOT_VERBS = ("help", "version")
"""Options that users may write as if they were verbs."""
MISPLACED = frozenset(
    {"-np", "--np", "-hostfile", "--hostfile", "-machinefile", "--machinefile", "-npernode", "--npernode", "-ppn"}
)
"""Our options that few programs have: among the arguments of a program that fails, they are likely misplaced."""
READERS = frozenset(
    {"python", "ipython", "pypy", "perl", "ruby", "lua", "node", "julia", "R", "octave", "tclsh", "bc", "gdb", "cat"}
    | {"sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh"}
)
"""Programs that read stdin when they are started without arguments; a version may follow the name."""
READER_FLAGS = frozenset({"-", "-i", "-l", "-q", "-s", "-u", "--interactive", "--login"})
"""Their options that change nothing about this."""

IMPORTS = {
    "tf": ("tensorflow", "TF_CONFIG, by which tf.distribute finds the other ranks"),
    "lightning": (r"(?:pytorch_)?lightning", "the Trainer's default number of nodes and devices"),
}
"""Profiles that the programs importing a module may need, and what each sets."""
MOST_SOURCE = 1 << 20


def profile_remark(programs: Sequence[Sequence[str]], profiles: Sequence[str]) -> str | None:
    """Return what a profile would set for a script of Python that imports a framework, else None: only a guess, for -v."""
    for path in (word for program in programs for word in program[:3] if word.endswith(".py") and os.path.isfile(word)):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                source = file.read(MOST_SOURCE)
        except OSError:
            continue
        for profile, (module, sets) in IMPORTS.items():
            found = re.search(rf"^\s*(?:import|from)\s+({module})\b", source, re.MULTILINE)
            if found and profile not in profiles:
                return f"{path} imports {found[1]}; --profile {profile} sets {sets}"
    return None


def stdin_reader(programs: Sequence[Sequence[str]]) -> str | None:
    """Return the first interpreter without a script, which reads stdin and ends at once where there is no input; else None."""
    for program in programs:
        if program[0].rpartition("/")[2].rstrip("0123456789.") in READERS and READER_FLAGS.issuperset(program[1:]):
            return program[0]
    return None


def for_missing_program(programs: Sequence[Sequence[str]]) -> str | None:
    """Return a hint if a missing program is probably a command line, a variable or a misspelled verb, else None."""
    for program in programs:
        if (hint := _for_variables(program)) is not None:
            return hint
    for name in (program[0] for program in programs):
        if any(sign in name for sign in ";|&><"):
            line = f"mpilaunch sh -c {shlex.quote(name)}; a link named pdsh does so by itself"
            return f"mpilaunch does not use a shell; run one: {line}"
        if " " in name:
            return f"the quotes make this one word; remove them: mpilaunch {name}"
    import shutil  # takes 2 ms

    name = programs[0][0]
    if not shutil.which(name) and not os.path.exists(name) and (guess := closest(name, (*NAMES, *NOT_VERBS))):
        return f"did you mean: mpilaunch {'--' if guess in NOT_VERBS else ''}{guess}"
    return None


def _for_variables(program: Sequence[str]) -> str | None:
    """Return a hint if words like NAME=VALUE precede a program: only a shell takes them for variables."""
    from mpilaunch.job.environment.contracts import FIXED  # only this error needs it

    variables = list(takewhile(lambda word: re.fullmatch("[A-Za-z_][A-Za-z0-9_]*=.*", word, re.DOTALL), program))
    if not variables or " " in variables[0]:
        return None
    if fixed := [word for word in variables if word.partition("=")[0] in FIXED]:
        return f"leave {fixed[0]} out: mpilaunch sets {fixed[0].partition('=')[0]} for every rank"
    exports = [word for variable in variables for word in ("-x", variable)]
    rest = program[len(variables) : len(variables) + 1]
    return f"variables of the ranks are set with -x: {shlex.join(['mpilaunch', *exports, *rest])}"


def for_misplaced_options(programs: Sequence[Sequence[str]]) -> str | None:
    """Return a hint if the arguments of a failed program probably include options meant for mpilaunch, else None."""
    for program in programs:
        for flag in (argument.partition("=")[0] for argument in program[1:]):
            if flag in MISPLACED:
                return f"{program[0]} received {flag} as its argument; options of mpilaunch must precede the program"
    return None
