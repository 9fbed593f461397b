"""Hints of `run` for a command line that most likely does not do what its user wants.

Loaded only with -v, or by a launch that fails or whose ranks get no input; a hint never changes the exit code. `job.hints` has
the hints for the messages of ranks.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from itertools import islice, takewhile

from mpilaunch.cli.verbs import NAMES
from mpilaunch.errors import LaunchError
from mpilaunch.text import closest

DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
"""What word processors and web pages put in the place of hyphens."""
BUILTINS = frozenset({".", "alias", "cd", "declare", "eval", "exec", "export", "set", "source", "ulimit", "umask", "unset"})
"""Commands of shells that are no programs."""
MOST_FILES = 10_000
"""Entries of a directory among which a similar name is looked for."""
NOT_VERBS = ("help", "version")
"""Options that users may write as if they were verbs."""
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


def profile_note(programs: Sequence[Sequence[str]], profiles: Sequence[str]) -> str | None:
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


def for_error(error: LaunchError, programs: Sequence[Sequence[str]], hosts: Sequence[str]) -> str | None:
    """Return a hint for a job that did not start because of its program, else None; `hosts` as for `for_missing_program`."""
    if error.reference == "start-program-missing":
        return for_missing_program(programs, hosts)
    if error.reference in ("start-program-not-executable", "start-interpreter-missing"):
        return _for_unusable_program(error.message)
    return None


def for_missing_program(programs: Sequence[Sequence[str]], hosts: Sequence[str] = ()) -> str | None:
    """Return a hint on what a missing program probably is, or where it may be; None if nothing is known.

    Args:
        hosts: names of the job's nodes that are not this machine.
    """
    for program in programs:
        if program[0][0] in DASHES:
            return f"'{program[0][0]}' is not a hyphen, though it looks like one: write -{program[0].strip(DASHES)}"
        if program[0] in BUILTINS:
            line = shlex.quote(f"{shlex.join(program)} && ...")
            return f"{program[0]} is a command of the shell: mpilaunch sh -c {line}; --wdir DIR sets the directory of the ranks"
        if len(program) > 1 and any(_without_digits(program[0]) == _without_digits(host) for host in hosts):
            return f"is {program[0]} a host? hosts are separated by commas: -H {hosts[-1]},{program[0]}"
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
    if (similar := _similar_file(name)) is not None:
        return f"did you mean {similar}?"
    return None if hosts else "give its path, or --wdir DIR, or -x PATH"


def _similar_file(path: str) -> str | None:
    """Return the path of a file whose name is similar to that of one that is not there."""
    folder, slash, name = path.rpartition("/")
    try:
        with os.scandir((folder or slash) if slash else ".") as entries:
            names = [entry.name for entry in islice(entries, MOST_FILES)]
    except OSError:
        return None
    guess = None if name in names else closest(name, names)
    return guess and f"{folder}{slash}{guess}"


def _without_digits(name: str) -> str:
    return name.rstrip("0123456789") if name[-1:].isdigit() else ""


def _for_unusable_program(message: str) -> str | None:
    """Return a hint if the program is a directory or was written on Windows, by the text of its error; else None."""
    if "is a directory" in message:
        return "a program is a file in it: add its name"
    if "\\r'" in message or "\r'" in message:
        return "the file has the line ends of Windows: sed -i 's/\\r$//' FILE"
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
