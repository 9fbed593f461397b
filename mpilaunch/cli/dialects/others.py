"""The error for an unknown option: a hint for options of launchers that are not detected, else the most similar option.

Pure, and loaded only for that error: pdsh, clush, srun, torchrun and deepspeed mean other jobs than mpirun does, so their
options are never translated by themselves; those of `dialects.SEPARATE` are with --dialect or under their names.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpilaunch.cli.options import BY_FLAG
from mpilaunch.errors import UsageError
from mpilaunch.text import closest

_TORCHRUN = "--dialect torchrun before it, or a link named torchrun, reads the options of torchrun"
INSTEAD = {
    "-w": "--host HOSTS names the nodes; --dialect pdsh or clush, or a link of that name, reads a line of that command",
    "--nodelist": "--host HOSTS names the nodes, as --nodelist of srun does",
    "--nproc-per-node": f"-N N starts N ranks on each node; {_TORCHRUN}",
    **dict.fromkeys(("-m", "--module"), f"write the interpreter: mpilaunch -np 4 python3 -m MODULE; {_TORCHRUN}"),
    **dict.fromkeys(("--standalone", "--no-python", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"), _TORCHRUN),
    **dict.fromkeys(("--rdzv-conf", "--local-ranks-filter", "--redirects", "--tee", "--log-dir", "--role"), _TORCHRUN),
    "--num-gpus": "-N N starts N ranks on each node, as --num_gpus of deepspeed does",
    "--num-nodes": "--host and --hostfile name the nodes",
    "--include": "--host HOSTS names the nodes",
    "--ntasks": "-np N starts N ranks",
    "--ntasks-per-node": "-N N starts N ranks on each node",
    "--cpus-per-task": "--cpus-per-rank N gives each rank N CPUs",
    "--gpus-per-task": "--gpus-per-rank N gives each rank N GPUs",
}
"""Flag, with hyphens, to the hint."""


def unknown(word: str, foreign: Sequence[str]) -> UsageError:
    """Return the error for an option that no launcher has; `foreign` are the flags of other launchers."""
    if (instead := INSTEAD.get(word.replace("_", "-"))) is not None:
        return UsageError("option-unknown", f"unknown option {word}", hint=instead)
    digits = len(word) - len(word.rstrip("0123456789"))
    if digits and not word.startswith("--") and (glued := word[:-digits]) in (*BY_FLAG, *foreign):
        return UsageError("option-unknown", f"unknown option {word}", hint=f"write {glued} {word[-digits:]}")
    long = [flag for flag in BY_FLAG if flag.startswith("--") or len(flag) == 2]
    flag = "--" + word.lstrip("-").replace("_", "-")
    guess = next((other for other in foreign if len(flag) > 5 and other.startswith(flag)), None)
    guess = guess or (closest(flag, (*long, *foreign)) if len(word) > 2 else None)
    suggestion = f"; did you mean {guess if word.startswith('--') else guess[1:]}?" if guess else ""
    return UsageError("option-unknown", f"unknown option {word}{suggestion}", hint="mpilaunch --help all lists all options")
