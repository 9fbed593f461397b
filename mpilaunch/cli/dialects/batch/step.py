"""Places the tasks of a step on nodes, as srun does. Source: srun(1), and Slurm's slurm_step_layout.c.

Pure: the variables of the allocation and the parts of a command line in, the options for mpilaunch's mapping out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from mpilaunch.cli.dialects.rows import InvalidArgument, Surroundings, Translation, exports, weak, whole
from mpilaunch.hosts.allocation import MAX_SLOTS
from mpilaunch.hosts.hostfile import parse_host_list
from mpilaunch.hosts.nodeset import MAX_ITEMS, Span, expand, fold
from mpilaunch.hosts.schedulers.slurm import counts
from mpilaunch.text import plural

_ALLOCATION = "SLURM_JOB_NODELIST"


class Host(NamedTuple):
    """A node of the allocation, and the tasks that its CPUs suffice for."""

    name: str
    room: float = math.inf


class Request(NamedTuple):
    """The numbers of a step.

    Attributes:
        least, most: the number of nodes; None for all.
        tasks: the number of tasks; None for one on each node, or `per_node`.
        per_node: tasks on each node.
        fill: as many tasks as the CPUs of the nodes suffice for.
        required: nodes that must be among the chosen ones.
        method: block, cyclic, pack, plane=SIZE or arbitrary, which places the tasks on `listed` in turn.
        overcommit: more tasks than CPUs are fine.
    """

    least: int | None = None
    most: int | None = None
    tasks: int | None = None
    per_node: int | None = None
    fill: bool = False
    required: frozenset[str] = frozenset()
    method: str = "block"
    listed: tuple[str, ...] = ()
    overcommit: bool = False


class Layout(NamedTuple):
    """The nodes with their number of tasks, and the node of each task where their order is neither block nor cyclic."""

    nodes: dict[str, int]
    tasks: int
    listed: tuple[int, ...] = ()


def lay_out(hosts: Sequence[Host], request: Request) -> Layout:
    """Return the layout of a step; raises InvalidArgument if the nodes do not suffice."""
    if (least := request.least) is not None and least > len(hosts):
        hint = f"ask for {plural(len(hosts), 'node')} or fewer, or for a larger allocation"
        raise InvalidArgument(f"--nodes asks for {plural(least, 'node')}, but there are {len(hosts)}", hint)
    most = min(request.most or len(hosts), len(hosts))
    chosen = _choose(hosts, request.required, min(most, request.tasks or most))
    tasks = request.tasks
    if tasks is None and request.per_node is None and request.fill:
        tasks = int(sum(host.room for host in chosen if host.room != math.inf)) or len(chosen)
    elif tasks is None:
        tasks = (request.per_node or 1) * len(chosen)
    if request.listed:
        place = {host.name: index for index, host in enumerate(chosen)}
        if missing := [name for name in request.listed[:tasks] if name not in place]:
            raise InvalidArgument(f"{missing[0]} is not one of the nodes: {','.join(place)}", "name nodes of the allocation")
        return _listed([*place], tasks, [place[name] for name in request.listed[:tasks]])
    if tasks > MAX_SLOTS:
        raise InvalidArgument(f"{tasks:,} tasks are more than the {MAX_SLOTS:,} allowed", "ask for fewer with --ntasks")
    kind, _, size = request.method.partition("=")
    if kind == "plane":
        return _listed([host.name for host in chosen], tasks, [task // int(size) % len(chosen) for task in range(tasks)])
    return Layout(_counts(chosen, tasks, request), tasks)


def _choose(hosts: Sequence[Host], required: frozenset[str], count: int) -> list[Host]:
    """Return `count` nodes in their order: the required ones, then the first of the others."""
    first = {host.name for host in sorted(hosts, key=lambda host: host.name not in required)[:count]}
    return [host for host in hosts if host.name in first]


def _listed(names: Sequence[str], tasks: int, places: Sequence[int]) -> Layout:
    if len(places) < tasks:
        raise InvalidArgument(f"{plural(tasks, 'task')}, but {len(places)} are listed", "list a node for each task")
    on = Counter(places)
    return Layout({name: on[index] for index, name in enumerate(names)}, tasks, tuple(places))


def _counts(chosen: Sequence[Host], tasks: int, request: Request) -> dict[str, int]:
    """Return the number of tasks of each node: in turn, or filling one node after the other."""
    room = sum(host.room for host in chosen)
    if tasks > room and not request.overcommit:
        message = f"{plural(tasks, 'task')} asked for, but the CPUs of {plural(len(chosen), 'node')} suffice for {room:g}"
        raise InvalidArgument(message, "--overcommit allows more tasks than CPUs; --cpus-per-task N takes N of them for each")
    counts = {host.name: 0 for host in chosen}
    left = tasks
    if request.method == "pack":
        for host in chosen:
            counts[host.name] = int(min(left, host.room))
            left -= counts[host.name]
    while left:
        # A node whose CPUs are taken is left out, until all are.
        open_hosts = [host for host in chosen if counts[host.name] < host.room] or chosen
        for host in open_hosts[:left]:
            counts[host.name] += 1
        left -= min(left, len(open_hosts))
    return counts


# From the command line, and to it


def nodes_of(parts: Mapping[str, str], around: Surroundings) -> list[Host]:
    """Return the nodes of the allocation, or those of --nodelist, without those that the options leave out."""
    listed = _named(parts, around)
    if allocation := around.environ.get(_ALLOCATION):
        names = [entry.name for entry in parse_host_list(allocation, _ALLOCATION)]
        cpus = around.environ.get("SLURM_JOB_CPUS_PER_NODE")
        each = whole(parts.get("cpus-per-task", "1"), "--cpus-per-task")
        rooms = [count // each for count in counts(cpus, "SLURM_JOB_CPUS_PER_NODE", len(names), _ALLOCATION)] if cpus else []
        hosts = list(map(Host, names, rooms)) if rooms else list(map(Host, names))
        if missing := [name for name in listed if name not in {*names}]:
            message = f"--nodelist: {missing[0]} is not in the allocation, {allocation}"
            raise InvalidArgument(message, "leave --nodelist out, or name nodes of the allocation")
    else:
        hosts = [Host(name) for name in dict.fromkeys(listed)]
    if "relative" in parts:
        if "nodelist" in parts or "exclude" in parts:
            raise InvalidArgument("--relative and --nodelist or --exclude contradict each other", "use one of them")
        hosts = hosts[whole(parts["relative"], "--relative", 0) :]
    excluded = {*_names(parts["exclude"], "--exclude", around)} if "exclude" in parts else set()
    left = [host for host in hosts if host.name not in excluded]
    if not left and (hosts or "relative" in parts or excluded):
        raise InvalidArgument("no node is left", "leave --exclude and --relative out, or name other nodes")
    return left


def _named(parts: Mapping[str, str], around: Surroundings) -> list[str]:
    text = parts.get("nodelist")
    if path := parts.get("nodefile"):
        text = path if "/" in path else f"./{path}"
    return _names(text, "--nodelist", around) if text else []


def _names(text: str, flag: str, around: Surroundings) -> list[str]:
    """Return the hosts of a list, or of a file whose path has a slash; `host*2` is the host twice."""
    if "/" in text:
        text = ",".join(around.read_file(text, f"file of {flag}").split())
    names: list[str] = []
    for item in Span.of(text, flag).split():
        match = re.fullmatch(r"(.*?)(?:\*([0-9]{1,5}))?", item.text, re.DOTALL)
        hosts = expand(item.part(0, len(match[1]))) if match else []
        times = int(match[2] or 1) if match else 0
        if len(names) + len(hosts) * times > MAX_ITEMS:
            raise InvalidArgument(f"{flag} names more than {MAX_ITEMS:,} hosts", "name each host once for each of its tasks")
        names += hosts * times
    return [name for name in names if name]


def request_of(parts: Mapping[str, str], around: Surroundings, hosts: Sequence[Host], tasks: int | None) -> Request:
    """Return the numbers of the step that the options and Slurm's variables describe; raises InvalidArgument."""
    environ = around.environ
    least = most = None
    if nodes := parts.get("nodes"):
        first, _, last = nodes.partition("-")
        least, most = whole(first, "--nodes"), whole(last or first, "--nodes")
        least = min(least, tasks or least)
    method = parts.get("distribution", "block").lower()
    kind, sockets, cores, *more = levels(parts)
    rest = method.partition(",")[2]
    listed: Sequence[str] = ()
    if kind == "plane":
        kind = f"plane={environ.get('SLURM_DIST_PLANESIZE', '')}"
    if kind == "arbitrary":
        path = environ.get("SLURM_HOSTFILE")
        listed = _named(parts, around)
        if path and not listed:
            listed = _names(path if "/" in path else f"./{path}", "SLURM_HOSTFILE", around)
        if not listed:
            hint = "set SLURM_HOSTFILE, or name a host for each task with -w"
            raise InvalidArgument("--distribution arbitrary needs a list", hint)
    known = kind in ("block", "cyclic", "*", "arbitrary") or re.fullmatch("plane=[1-9][0-9]{0,5}", kind) is not None
    known = known and rest in ("", "pack", "nopack") and {sockets, cores} <= {"", "*", "block", "cyclic"}
    if not known or any(more):
        hint = "use block, cyclic, plane=SIZE or arbitrary, also with :block, :cyclic or ,Pack"
        raise InvalidArgument(f"distribution '{method}' is not supported", hint)
    method = "pack" if rest == "pack" and kind in ("block", "*") else "block" if kind == "*" else kind
    # srun leaves a number of tasks on each node aside that contradicts the number of tasks.
    each = None if tasks else parts.get("ntasks-per-node") or environ.get("SLURM_NTASKS_PER_NODE")
    per_node = whole(each, "--ntasks-per-node") if each else None
    required = frozenset(listed or _named(parts, around))
    return Request(
        least, most, tasks, per_node, "cpus-per-task" in parts, required, method, tuple(listed), "overcommit" in parts
    )


def levels(parts: Mapping[str, str]) -> list[str]:
    """Return the ways in which --distribution goes over nodes, sockets and cores, "" where it says nothing; at least three."""
    return [*parts.get("distribution", "block").lower().partition(",")[0].split(":"), "", ""]


def without_allocation(parts: Mapping[str, str], request: Request, names_hosts: bool) -> Translation:
    """Return the options for the nodes that our own options name, or for this machine."""
    if unusable := [f"--{name}" for name in ("nodelist", "nodefile", "exclude", "relative", "multi-prog") if name in parts]:
        message = f"{unusable[0]} needs an allocation of Slurm, and no --host or --hostfile"
        raise InvalidArgument(message, "run salloc or sbatch first, or name the nodes with -w instead")
    if request.method not in ("block", "cyclic"):
        raise InvalidArgument(f"--distribution {request.method} needs an allocation, or -w", "use --map-by or --rankmap")
    if (request.least or 1) > 1 and not names_hosts:
        hint = "run salloc or sbatch first and this command inside, or name the nodes: -w node[1-2]"
        raise InvalidArgument(f"--nodes {request.least} outside an allocation of Slurm", hint)
    result = weak("--map-by", "node") if request.method == "cyclic" else weak("--map-by", "node") + weak("--rank-by", "slot")
    if request.least and names_hosts:
        fixed = request.least == request.most
        result += Translation(("--nnodes", str(request.least) if fixed else f"{request.least}:{request.most}"))
    result += label(parts, request.tasks or 1)
    if request.tasks:
        return result + Translation(("--np", str(request.tasks))) + weak("--oversubscribe")
    return result + weak("--npernode", str(request.per_node or 1))


def label(parts: Mapping[str, str], tasks: int = 1) -> Translation:
    """Return the tag of --label, as wide as the last task's number."""
    return weak("--tag", f"{{rank:{len(str(tasks - 1))}}}: ") if "label" in parts else Translation()


def _runs(counts: Iterable[int]) -> list[tuple[int, int]]:
    """Return equal neighbours as (value, times)."""
    return [(value, sum(1 for _ in run)) for value, run in groupby(counts)]


def placed(layout: Layout, method: str) -> Translation:
    """Return the nodes with a slot for each task, and the order of the tasks."""
    result = weak("--host", ",".join(f"{name}:{count}" for name, count in layout.nodes.items() if count))
    result += Translation(("--np", str(layout.tasks)))
    used = {name: count for name, count in layout.nodes.items() if count}
    each = ",".join(str(count) if times == 1 else f"{count}(x{times})" for count, times in _runs(used.values()))
    result += exports(
        {"SLURM_STEP_NODELIST": fold(used), **dict.fromkeys(("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), each)}
    )
    if layout.listed:
        number = {name: index for index, name in enumerate(used)}
        names = [*layout.nodes]
        return result + weak("--rankmap", ",".join(str(number[names[index]]) for index in layout.listed))
    return result + weak("--map-by", "node" if method == "cyclic" else "slot")
