"""Options of `flux run`. Source: flux-run(1) of flux-core 0.60 to 0.80. Jobs are not queued: the ranks start at once.

Inside an instance of Flux the nodes are its own; `flux submit` and the other commands of flux are errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from mpilaunch.cli.dialects.batch.requests import asks, check
from mpilaunch.cli.dialects.rows import (
    Dialect,
    InvalidArgument,
    Surroundings,
    Translation,
    acts,
    ignored,
    part,
    refused,
    weak,
    whole,
)
from mpilaunch.text import escape_braces

_OTHER = frozenset({"submit", "bulksubmit", "batch", "alloc", "exec", "mini", "start", "job", "jobs", "proxy"})


def time_limit(text: str) -> Translation:
    """-t 30 is minutes; 30s, 5m, 1h and 1d are times."""
    return Translation(("--timeout", text if text[-1:].isalpha() else f"{text}m"))


_FIELDS = {
    "id": "{job}",
    "jobid": "{job}",
    "task.id": "{rank}",
    "taskid": "{rank}",
    "node.id": "{node_rank}",
    "node.name": "{host}",
}


def template(flag: str, text: str) -> Translation:
    """--output out.{{task.id}}: write a stream to files; none and kvs print it."""
    pieces = re.split(r"\{\{([^{}]*)\}\}", text)
    if unknown := [name for name in pieces[1::2] if name not in _FIELDS]:
        hint = "the fields are " + " ".join(f"{{{{{name}}}}}" for name in _FIELDS)
        raise InvalidArgument(f"unknown field '{{{{{unknown[0]}}}}}' in '{text}'", hint)
    path = "".join(_FIELDS[piece] if place % 2 else escape_braces(piece) for place, piece in enumerate(pieces))
    return Translation() if text in ("none", "kvs") else Translation((flag, path), parts={flag: path})


def env(rule: str) -> Translation:
    """--env RULE: -PATTERN removes variables, NAME and PREFIX* add them, NAME=VALUE sets one, ^FILE reads a file."""
    if rule.lstrip("-").startswith("/") or "$" in rule.partition("=")[2]:
        hint = "name variables, or prefixes like NAME_*; the shell fills $NAME"
        raise InvalidArgument(f"rule '{rule}' is not supported", hint)
    whole_rules = {"*": ("--forward", "all"), "-*": ("--forward", "none")}
    flag = {"-": "--unset-env", "^": "--env-file"}.get(rule[:1])
    return Translation(whole_rules.get(rule) or ((flag, rule[1:]) if flag else ("--export", rule)))


_PMI = {"simple": "pmi1", "pmix": "pmix", "off": "none", "pmi1": "pmi1", "pmi2": "pmi2"}


def setopt(text: str) -> Translation:
    """-o KEY=VALUE: the options of Flux's shell that concern ranks."""
    key, _, value = text.partition("=")
    if key == "cpu-affinity" and value in ("off", "per-task", "on"):
        return Translation(("--bind-to", "core" if value == "per-task" else "none"))
    if key == "gpu-affinity" and value in ("off", "per-task", "on"):
        return Translation(parts={"gpus": {"off": "none", "per-task": "slot", "on": "node"}[value]})
    if key == "pmi" and value in _PMI:
        return Translation(("--mpi", _PMI[value]))
    if key == "exit-on-error":
        return Translation(("--no-continue-on-error",))
    if text == "exit-timeout=none":
        return Translation(("--continue-on-error",))
    hint = "use cpu-affinity, gpu-affinity, pmi, exit-on-error or exit-timeout=none, or an option of mpilaunch"
    raise InvalidArgument(f"shell option '{text}' is not supported", hint)


def finish(parts: Mapping[str, str], words: Sequence[str], around: Surroundings) -> tuple[Translation, list[str]]:
    """Return the ranks, their nodes, and what is together with other options."""
    if words and words[0] in _OTHER:
        raise InvalidArgument(f"flux {words[0]} is not supported", "mpilaunch reads the command line of: flux run")
    result = check(parts, "FLUX_URI" in around.environ, "run flux alloc or flux batch")
    nodes = whole(parts["nodes"], "--nodes") if "nodes" in parts else None
    tasks = whole(parts["ntasks"], "--ntasks") if "ntasks" in parts else None
    each = whole(parts["tasks-per-node"], "--tasks-per-node") if "tasks-per-node" in parts else None
    if nodes and tasks and nodes > tasks:
        raise InvalidArgument(f"--nodes {nodes} is more than --ntasks {tasks}", "ask for no more nodes than ranks")
    if tasks and each:
        raise InvalidArgument("--ntasks and --tasks-per-node are not supported together", "give --nodes and --tasks-per-node")
    if nodes:
        result += Translation(("--nnodes", str(nodes))) + weak("--map-by", "node") + weak("--rank-by", "slot")
    if tasks is None and (nodes or each):
        result += Translation(("--npernode", str(each or 1)))
    else:
        result += Translation(("--np", str(tasks or 1)))
    if "gpus-per-task" in parts:
        result += Translation(("--gpus-per-rank", parts["gpus-per-task"], "--gpu-bind", parts.get("gpus", "node")))
    result += Translation(("--profile", "flux"))
    if "label-io" in parts:
        result += weak("--tag", "{rank}: ")
    if "--output-file" in parts and "--error-file" not in parts:
        result += Translation(("--merge-stderr-to-stdout",))
    return result, list(words)


_KNOWN = "{{id}}, {{task.id}}, {{node.id}}, {{node.name}}"
_PER_RESOURCE = "use --ntasks with --cores-per-task and --gpus-per-task, or --tasks-per-node"

_ROWS = (
    part("ntasks n", "N", "`--np N`; without it one rank, or one on each of --nodes"),
    part("nodes N", "N", "`--nnodes N`, the ranks spread evenly over them"),
    part("tasks-per-node", "N", "`--npernode N`"),
    acts("cores-per-task c", "N", "--cpus-per-rank $1"),
    part("gpus-per-task g", "N", "`--gpus-per-rank N --gpu-bind node`; slot with -o gpu-affinity=per-task"),
    refused("cores tasks-per-core gpus-per-node", "N", _PER_RESOURCE),
    refused("taskmap", "SCHEME", "use --map-by and --rank-by, or --rankmap"),
    acts("time-limit t", "TIME", time_limit, "`--timeout TIME`, in minutes without a unit"),
    part("label-io l", "", "`--tag '{rank}: '`"),
    acts("output", "TEMPLATE", partial(template, "--output-file"), f"`--output-file` with {_KNOWN}"),
    acts("error", "TEMPLATE", partial(template, "--error-file"), "`--error-file`; without it stderr goes with stdout"),
    acts("input", "RANK", "--stdin $1"),
    ignored("unbuffered u", "", "mpilaunch never waits for more output; start a C program as: stdbuf -oL ./a"),
    acts("env", "RULE", env, "`--export`, `--unset-env`, `--forward` or `--env-file`"),
    acts("env-remove", "PATTERN", "--unset-env $1"),
    acts("env-file", "FILE", "--env-file $1"),
    acts("cwd", "DIR", "--wdir $1"),
    acts("setopt o", "KEY[=VALUE]", setopt, "cpu-affinity, gpu-affinity, pmi and exit-on-error; others are errors"),
    refused("rlimit", "RULE", "start the program as: sh -c 'ulimit ...; exec ./a'"),
    refused("add-file", "FILE", "copy the file to the nodes first"),
    refused("cc bcc wait-event", "VALUE", "they are of flux submit"),
    asks("queue q bank B urgency requires dependency begin-time signal flags setattr S job-name", "VALUE"),
    asks("exclusive x", ""),
    ignored("debug", "", "-vv prints each step"),
)

DIALECT = Dialect(
    name="flux",
    title="flux run",
    owner="Flux's",
    rows=_ROWS,
    defaults={"forward": ("all", "Flux's default"), "stdin": ("all", "Flux's default")},
    verbs=("run",),
    getopt=True,
    finish=finish,
)
