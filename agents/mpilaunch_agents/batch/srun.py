"""The command line and the environment of an srun that starts one task on each of some nodes, and what it says of them. Pure.

Sources: srun(1) of 22.05 to 25.05, "INPUT ENVIRONMENT VARIABLES"; src/srun/libsrun/launch.c for the words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mpilaunch.hosts.hostfile import parse_host_list
from mpilaunch.hosts.schedulers import slurm

FLAGS = (
    "--overlap",  # beside other steps of the job, and with all that the job was granted on a node
    *("--mpi=none", "--cpu-bind=none", "--mem=0"),  # a daemon's ranks get all of that, and MPI from mpilaunch
    *("--no-kill", "--kill-on-bad-exit=0", "--wait=0"),  # the end of one node's task is no reason to end the others
    "--export=ALL",
)
"""Neither -c nor --exact, which would confine a daemon and its ranks to one CPU."""
KEPT = (
    *("SLURM_CONF", "SLURM_CLUSTER", "SLURM_JWT", "SLURM_JOBID", "SLURM_JOB_", "SLURM_ARRAY_", "SLURM_SUBMIT_"),
    *("SLURM_HET_", "SLURM_RESTART_COUNT", "SLURM_TOPOLOGY_", "SLURM_TASKS_PER_NODE", "SLURM_GPUS_ON_NODE"),
)
"""How the names begin of Slurm's variables that set no option of srun: those of the job."""
OF_MANY = ("--input=all", "--label")
OF_ONE = ("--unbuffered",)
"""Further options of a step whose stdin is for all its nodes, and of one whose task talks over srun: Slurm would hold back what
is no whole line."""
OF_STEPS = ("SLURM_", "SRUN_")

_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]{1,64})?:(\d{1,5})(?=[,(]|$)")
_LABELLED = re.compile(rb"(\d{1,7}): ?")
_ERROR = "srun: error: "
_EXITED = "Exited with exit code "
_LAST_WORDS = ("srun: error: ", "slurmstepd: error: ")
LOST = ("CANCELLED AT ", "Invalid job id", "already completing or completed", "has been revoked")
"""Words of messages that say that Slurm has ended a step or its job."""


def parts(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the option that names the part of a heterogeneous job, by the names of its nodes; raises UsageError."""
    return {host.name: f"--het-group={part}" for part, hosts in enumerate(slurm.parts(environ)) for host in hosts}


class Gpus(NamedTuple):
    """What a step on some nodes must say for its tasks to have the GPUs that the job was granted there.

    Attributes:
        option: of srun, "" where there are none.
        alone: each node needs a step of its own.
    """

    option: str = ""
    alone: bool = False


def gpus_by_node(job: str) -> dict[str, Gpus]:
    """Return what a step must say on each node of a job; raises UsageError.

    A step that says nothing gets what the tasks of the job asked for, and has one of them only. Where the job asked for GPUs in
    total, Slurm refuses numbers for nodes, and counts a total of several nodes in its own way.

    Args:
        job: what `scontrol show job --details` prints; the parts of a heterogeneous job follow each other.
    """
    found: dict[str, Gpus] = {}
    for part in job.split("\n\n"):
        alone = "TresPerJob=gres:gpu" in part or "TresPerJob=gres/gpu" in part
        for line in part.splitlines():
            words = dict(word.partition("=")[::2] for word in line.split())
            if not words.get("Nodes") or "CPU_IDs" not in words:
                continue
            count = sum(int(number) for number in _GPUS.findall(words.get("GRES", "")))
            option = (f"--gpus={count}" if alone else f"--gres=gpu:{count}") if count else ""
            found |= {host.name: Gpus(option, alone) for host in parse_host_list(words["Nodes"], "scontrol")}
    return found


def port_range(config: str) -> range:
    """Return the ports at which nodes may reach a program that is not Slurm's own, empty for any: its SrunPortRange.

    Args:
        config: what `scontrol show config` prints; "0-0" stands for any.
    """
    for line in config.splitlines():
        name, _, value = line.partition("=")
        first, _, last = value.strip().partition("-")
        if name.strip() == "SrunPortRange" and _is_number(first) and _is_number(last) and int(first):
            return range(int(first), min(int(last), 65535) + 1)
    return range(0)


def argv(program: str, nodes: Sequence[str], command: Sequence[str], flags: Sequence[str] = OF_MANY) -> list[str]:
    """Return the command line of a step with a task on each of these nodes; `program` is the path of srun."""
    count = len(nodes)
    where = (f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--nodelist={','.join(nodes)}")
    return [program, *FLAGS, *flags, *where, *command]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for srun: without those by which a user sets its options for steps of their own."""
    return {name: value for name, value in environ.items() if not name.startswith(OF_STEPS) or name.startswith(KEPT)}


def labelled(line: bytes) -> tuple[int | None, bytes]:
    """Return the task that has printed a line of srun's output, None if srun itself has, and the line without its label."""
    label = _LABELLED.match(line)
    return (int(label[1]), line[label.end() :]) if label else (None, line)


class TaskEnd(NamedTuple):
    """What srun says of tasks that did not end with exit code 0; `code` is None after a signal."""

    tasks: tuple[int, ...]
    code: int | None


def task_end(line: str) -> TaskEnd | None:
    """Return the end of tasks that a line of srun tells: "srun: error: n[01-02]: tasks 0-1: Exited with exit code 2"."""
    _, named, rest = line.removeprefix(_ERROR).partition(": task") if line.startswith(_ERROR) else ("", "", "")
    numbers, told, words = rest.removeprefix("s").strip().partition(": ")
    if not (named and told):
        return None
    tasks: list[int] = []
    for part in numbers.split(","):
        first, _, last = part.partition("-")
        if not (_is_number(first) and _is_number(last or first)) or int(last or first) - int(first) > 1 << 20:
            return None
        tasks += range(int(first), int(last or first) + 1)
    code = words.removeprefix(_EXITED)
    return TaskEnd(tuple(tasks), int(code) if words.startswith(_EXITED) and _is_number(code) else None)


def said_by_slurm(line: str) -> str:
    """Return a line of a task's output if it is of Slurm's daemon on its node, and tells of the step's end; "" otherwise."""
    return f"{line}\n" if line.startswith("slurmstepd-") and any(words in line for words in LOST) else ""


def reason(stderr: str) -> tuple[str, bool]:
    """Return why a step has ended, "" if srun does not tell, and whether Slurm has ended it or its job."""
    lines = [line.strip() for line in stderr.splitlines()]
    lost = [line for line in lines if any(words in line for words in LOST)]
    told = lost or [line for line in lines if line.startswith(_LAST_WORDS) and task_end(line) is None]
    if not told:
        return "", False
    _, marked, words = told[-1].partition("*** ")
    return (words.removesuffix(" ***") if marked else told[-1]), bool(lost)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 8
