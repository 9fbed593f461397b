"""The error for an unknown option: a hint for options of launchers that are not detected, else the most similar option.

Pure, and loaded only for that error: these launchers mean other jobs than mpirun does, so their options are never translated by
themselves, but only with --dialect or under the name of the launcher, where it is a dialect.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpilaunch.cli.dialects import NAMES, SEPARATE
from mpilaunch.cli.dialects.table import of_name
from mpilaunch.cli.options import BY_FLAG
from mpilaunch.errors import UsageError
from mpilaunch.text import closest


def _reading(names: Sequence[str]) -> str:
    if len(names) > 1:
        return f"--dialect {', '.join(names[:-1])} or {names[-1]}, or a link of that name, reads a line of that launcher"
    return f"--dialect {names[0]} before it, or a link named {names[0]}, reads the options of {names[0]}"


OURS = {
    "-w": f"--host HOSTS names the nodes; {_reading(['pdsh', 'clush', 'srun'])}",
    "-m": f"write the interpreter: mpilaunch -np 4 python3 -m MODULE; {_reading(['torchrun'])}",
    "--module": "write the interpreter: mpilaunch -np 4 python3 -m MODULE",
    **dict.fromkeys(("--num-nodes", "--num-machines", "--nodelist"), "--host and --hostfile name the nodes"),
    **dict.fromkeys(("--nproc-per-node", "--num-gpus", "--ntasks-per-node"), "-N N starts N ranks on each node"),
    **dict.fromkeys(("--num-processes", "--ntasks"), "-np N starts N ranks"),
    "--cpus-per-task": "--cpus-per-rank N gives each rank N CPUs",
    "--gpus-per-task": "--gpus-per-rank N gives each rank N GPUs",
}
"""Flag of another launcher, with hyphens, to the option of ours that does the same."""


def unknown(word: str, foreign: Sequence[str], launcher: str = "") -> UsageError:
    """Return the error for an option that no launcher has, or that the one in use has not.

    Args:
        foreign: flags of other launchers.
        launcher: the launcher that is not detected, if its options are read.
    """
    if not launcher:
        owners = [name for name in NAMES if name in SEPARATE and len(word) > 2 and of_name(name).has(word)]
        ours = OURS.get(word.replace("_", "-"))
        if hint := "; ".join(filter(None, (ours, _reading(owners) if owners else ""))):
            return UsageError("option-unknown", f"unknown option {word}", hint=hint)
    digits = len(word) - len(word.rstrip("0123456789"))
    if digits and not word.startswith("--") and (glued := word[:-digits]) in (*BY_FLAG, *foreign):
        return UsageError("option-unknown", f"unknown option {word}", hint=f"write {glued} {word[-digits:]}")
    long = [flag for flag in BY_FLAG if flag.startswith("--") or len(flag) == 2]
    flag = "--" + word.lstrip("-").replace("_", "-")
    guess = next((other for other in foreign if len(flag) > 5 and other.startswith(flag)), None)
    guess = guess or (closest(flag, (*long, *foreign)) if len(word) > 2 else None)
    suggestion = f"; did you mean {guess if word.startswith('--') else guess[1:]}?" if guess else ""
    lists = f"{launcher} lists its options" if launcher else "all lists all options"
    return UsageError("option-unknown", f"unknown option {word}{suggestion}", hint=f"mpilaunch --help {lists}")
