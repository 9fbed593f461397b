"""Options of DeepSpeed's launcher, `deepspeed` (deepspeed/launcher/runner.py and launch.py, 0.10 to 0.19).

mpilaunch starts the ranks itself, with the slots, GPUs, variables and arguments that DeepSpeed's launcher gives them; no pdsh
and no mpirun is needed. This module reads the hostfile only where the number of slots decides about other options, and starts
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from mpilaunch.cli.dialects.frameworks.common import LOCAL_RANK, ByHand, fill_local_rank, program
from mpilaunch.cli.dialects.rows import (
    Dialect,
    InvalidArgument,
    Surroundings,
    Translation,
    acts,
    exports,
    needless,
    part,
    refused,
    weak,
    whole,
)
from mpilaunch.cli.files import read_unnamed
from mpilaunch.defaults import MASTER_PORT
from mpilaunch.hosts.allocation import HostDefaults, allocate
from mpilaunch.hosts.hostfile import parse_hostfile
from mpilaunch.hosts.nodeset import Span, parse_numbers
from mpilaunch.hosts.slot_filter import filter_slots
from mpilaunch.job.environment.env_file import read_env_file
from mpilaunch.text import escape_braces

_HOSTFILE, _PORT = "/job/hostfile", str(MASTER_PORT)
"""DeepSpeed's defaults of --hostfile, used if the file exists, and of --master_port."""
_OF_NODES = ("PATH", "LD_LIBRARY_PATH")
"""Variables that DeepSpeed gives to the ranks of all nodes, in addition to those that mpilaunch forwards."""

# Functions of rows

_LAUNCHERS = ("pdsh", "openmpi", "mvapich", "slurm", "mpich", "impi")


def launcher(name: str) -> Translation:
    """--launcher NAME: mpilaunch starts the ranks itself; all but pdsh give the script no --local_rank."""
    if name.lower() not in _LAUNCHERS:
        raise InvalidArgument(f"unknown launcher '{name}'", f"leave it out, or use one of {', '.join(_LAUNCHERS)}")
    note = f"--launcher {name} has no effect on how ranks start: mpilaunch starts them itself"
    return Translation(notes=((note, 1),), parts={} if name.lower() == "pdsh" else {"no_local_rank": "yes"})


def launcher_args(words: str) -> Translation:
    """--launcher_args WORDS: arguments of pdsh or mpirun, which does not run."""
    if words.strip():
        raise InvalidArgument(f"'{words}' are arguments of another launcher", "write options of mpilaunch before the script")
    return Translation()


_LEVELS = {"debug": ("-vv",), "info": (), "warning": ("--quiet",), "error": ("--quiet",), "critical": ("--quiet",)}


def log_level(level: str) -> Translation:
    """--log_level debug, info, ...: what mpilaunch prints."""
    if level not in _LEVELS:
        raise InvalidArgument(f"unknown level '{level}'", f"use {', '.join(_LEVELS)}")
    return Translation(_LEVELS[level])


def each_rank_log(folder: str) -> Translation:
    """--enable_each_rank_log DIR: stdout and stderr of each rank in one file."""
    if folder == "None":
        return Translation()
    name = f"{escape_braces(folder.rstrip('/') or '/')}/{{job}}_rank{{rank}}.log"
    return Translation(("--output-file", name, "--merge-stderr-to-stdout"))


# All options together


def finish(parts: Mapping[str, str], words: Sequence[str], around: Surroundings) -> tuple[Translation, list[str]]:
    """Return the nodes, slots and variables that the options describe together, and the program with its arguments."""
    parts = {name: text for name, text in parts.items() if name not in ("num_nodes", "num_gpus") or text != "-1"}  # its default
    _check(parts)
    hostfile = parts.get("hostfile")
    if hostfile is None and not around.names_hosts and os.path.isfile(_HOSTFILE):
        hostfile = _HOSTFILE
    sizes = _sizes(parts, hostfile, around)
    if "no_ssh" in parts:
        result = _by_hand(parts, sizes, around)
    elif hostfile is None and not around.names_hosts:
        result = _here(parts, around.environ)
    else:
        result = _on_nodes(parts, hostfile) + _variables(around.environ, template="no_local_rank" not in parts)
    result += weak("--gpu-bind", "ranks") + _cores(parts, sizes) + _elastic(parts)
    return _program(result, parts, list(words), around.environ)


def _check(parts: Mapping[str, str]) -> None:
    """Raise InvalidArgument for options that contradict each other, or need another."""
    given = [name for name in ("include", "exclude", "num_nodes", "num_gpus") if parts.get(name)]
    if len(given) > 1 and given != ["num_nodes", "num_gpus"]:
        hint = f"leave --{given[-1]} out; --include and --exclude name the slots of each host"
        raise InvalidArgument(f"--{given[0]} and --{given[-1]} contradict each other", hint)
    for name in ("num_nodes", "num_gpus", "node_rank"):
        whole(parts.get(name, "0"), f"--{name}", 0)
    for name, needed in _NEEDS.items():
        if name in parts and needed not in parts:
            raise InvalidArgument(f"--{name} needs --{needed}", f"add --{needed}, or leave --{name} out")


_NEEDS = {
    "node_rank": "no_ssh",
    "no_ssh": "node_rank",
    "min_elastic_nodes": "elastic_training",
    "max_elastic_nodes": "elastic_training",
    "bind_core_list": "bind_cores_to_rank",
}


def _sizes(parts: Mapping[str, str], hostfile: str | None, around: Surroundings) -> dict[str, int] | None:
    """Return the ranks of each host where an option depends on them, None where they are unknown."""
    each = int(parts["num_gpus"]) if "num_gpus" in parts else None
    if hostfile is None or not ("no_ssh" in parts or "bind_cores_to_rank" in parts):
        here = hostfile is None and not around.names_hosts
        count = len(_slots(parts.get("include", ""))) if here else 0
        return {"localhost": each or count or 0} if each or count else None
    nodes = allocate(parse_hostfile(around.read_file(hostfile, "hostfile"), hostfile), hostfile, HostDefaults())
    for flag in ("include", "exclude"):
        if parts.get(flag):
            nodes = filter_slots(nodes, parts[flag], f"--{flag}")
    sizes = {node.name: each or len(node.slots) for node in nodes.nodes}
    return dict(list(sizes.items())[: int(parts.get("num_nodes", "0")) or None])


def _slots(include: str) -> set[int]:
    """Return the slots that a list names, whatever the hosts."""
    lists = (item.partition(":")[2] for item in include.split("@"))
    return {number for text in lists if text for number in parse_numbers(Span.of(text, "--include"))}


def _here(parts: Mapping[str, str], environ: Mapping[str, str]) -> Translation:
    """Return this machine and its slots: those that are named, N, or one for each GPU."""
    if int(parts.get("num_nodes", "1")) > 1:
        raise InvalidArgument(f"--num_nodes {parts['num_nodes']} without hosts", "add --hostfile FILE, or --host HOSTS")
    if parts.get("exclude"):
        hint = "name the GPUs to use, like --include localhost:1,2,3, or add --hostfile FILE"
        raise InvalidArgument("--exclude needs the number of slots, and there is no hostfile", hint)
    if include := parts.get("include"):
        if slots := _slots(include):
            return Translation(("--host", f"localhost:{max(slots) + 1}", "--include", include))
        if include != "localhost":
            raise InvalidArgument(f"--include {include} without hosts", "add --hostfile FILE, or use localhost:0,1")
    here = weak("--host", "localhost")
    if "num_gpus" in parts:
        return here + Translation(("--npernode", parts["num_gpus"]))
    if environ.get("DS_ACCELERATOR") == "cpu":
        return here + weak("--map-by", "ppr:1:numa") + weak("--bind-to", "none")
    return here + weak("--npernode", "gpu")


def _on_nodes(parts: Mapping[str, str], hostfile: str | None) -> Translation:
    """Return the nodes of a hostfile and the slots that the options leave."""
    flags = {"include": "--include", "exclude": "--exclude", "num_nodes": "--nnodes", "num_gpus": "--npernode"}
    given = (word for name, flag in flags.items() if parts.get(name) for word in (flag, parts[name]))
    return Translation((*(("--hostfile", hostfile) if hostfile else ()), *given))


def _by_hand(parts: Mapping[str, str], sizes: Mapping[str, int] | None, around: Surroundings) -> Translation:
    """Return this machine's part of a job that the user starts on each node."""
    if parts.get("include") or parts.get("exclude"):
        hint = "CUDA_VISIBLE_DEVICES chooses the GPUs of this machine, --num_gpus their number"
        raise InvalidArgument("--no_ssh with --include or --exclude is not supported", hint)
    sizes = sizes or {}
    nodes = parts.get("num_nodes", str(len(sizes) or 1))
    each = _equal(sizes, "--no_ssh")
    start = ByHand(nodes, parts["node_rank"], next(iter(sizes), "127.0.0.1"), _PORT, "--num_nodes", "--node_rank")
    return weak("--npernode", str(each) if each else "gpu") + start.translation(around, given=True)


def _equal(sizes: Mapping[str, int] | None, flag: str) -> int:
    """Return the number of ranks that each host has, 0 if unknown; raises InvalidArgument if they differ."""
    numbers = set((sizes or {}).values())
    if len(numbers) > 1:
        raise InvalidArgument(f"{flag} needs the same number of slots on each host", "add --num_gpus N")
    return next(iter(numbers), 0)


def _cores(parts: Mapping[str, str], sizes: Mapping[str, int] | None) -> Translation:
    """Return the binding of --bind_cores_to_rank: an equal share of the listed cores for each local rank."""
    if "bind_cores_to_rank" not in parts:
        return Translation()
    if "bind_core_list" not in parts:
        hint = "add --bind_core_list 0-15, or use --bind-to core --cpus-per-rank N, without --bind_cores_to_rank"
        raise InvalidArgument("--bind_cores_to_rank needs the list of cores", hint)
    ranks = _equal(sizes, "--bind_cores_to_rank")
    cores = parse_numbers(Span.of(parts["bind_core_list"], "--bind_core_list"))
    if not ranks:
        raise InvalidArgument("--bind_cores_to_rank needs the number of ranks on each node", "add --num_gpus N")
    each = len(cores) // ranks
    if not each:
        raise InvalidArgument(f"--bind_core_list has {len(cores)} cores for {ranks} ranks", "list at least one for each rank")
    groups = ("+".join(map(str, cores[each * rank : each * (rank + 1)])) for rank in range(ranks))
    return Translation(("--bind-to", f"user:{','.join(groups)}", "--export", f"OMP_NUM_THREADS={each}"))


def _elastic(parts: Mapping[str, str]) -> Translation:
    """Return what --elastic_training means: restarts, on as many nodes as are available."""
    if "elastic_training" not in parts:
        return Translation()
    if "no_ssh" in parts or parts.get("num_nodes"):
        flag = "--no_ssh" if "no_ssh" in parts else "--num_nodes"
        raise InvalidArgument(f"--elastic_training and {flag} cannot be used together", f"leave {flag} out")
    restarts = weak("--max-restarts", "100")
    if "max_elastic_nodes" not in parts:
        if "min_elastic_nodes" in parts:
            raise InvalidArgument("--min_elastic_nodes needs --max_elastic_nodes", "add it: the hostfile's number of nodes")
        return restarts
    return restarts + Translation(("--nnodes", f"{parts.get('min_elastic_nodes', '1')}:{parts['max_elastic_nodes']}"))


def _variables(environ: Mapping[str, str], *, template: bool) -> Translation:
    """Return the variables that DeepSpeed's launcher gives to the ranks of all nodes; braces are escaped in templates."""
    path = ":".join(filter(None, (os.getcwd(), environ.get("PYTHONPATH"))))
    variables = {"PYTHONPATH": path, **{name: environ[name] for name in _OF_NODES if name in environ}}
    variables |= {name: value for name, value in environ.items() if name.startswith("PYTHON") and name not in variables}
    for folder in (environ.get("HOME", ""), "."):
        file = os.path.join(folder, environ.get("DS_ENV_FILE", ".deepspeed_env"))
        if folder and (text := read_unnamed(file, "env file")) is not None:
            variables |= {name: value for _, name, value in read_env_file(file, text)}
    spelled = escape_braces if template else str
    return exports({name: spelled(value) for name, value in variables.items()})


def _program(
    result: Translation, parts: Mapping[str, str], words: list[str], environ: Mapping[str, str]
) -> tuple[Translation, list[str]]:
    """Return the options and the program; the script gets its local rank as the first argument."""
    started = program(parts, words, environ, [] if "no_local_rank" in parts else [f"--local_rank={LOCAL_RANK}"])
    if started and "venv_script" in parts:
        started = ["bash", "-c", 'source "$0"; exec "$@"', parts["venv_script"], *started]
    filled, started = fill_local_rank(started)
    return result + filled, started


# Rows

_ROWS = (
    # Ranks and nodes
    part("hostfile H", "FILE", "`--hostfile FILE`; without it /job/hostfile if it exists, else this machine"),
    part("include i", "SLOTS", "`--include SLOTS`; without a hostfile localhost:0,1 names GPUs of this machine"),
    part("exclude e", "SLOTS", "`--exclude SLOTS`"),
    part("num_nodes", "N", "`--nnodes N`: the first N hosts"),
    part("num_gpus num_accelerators", "N", "`--npernode N`, with the first N GPUs of each node"),
    part("elastic_training", "", "`--max-restarts 100`"),
    part("min_elastic_nodes", "N", "with --elastic_training, `--nnodes N:MAX`"),
    part("max_elastic_nodes", "N", "with --elastic_training, `--nnodes MIN:N`"),
    acts("master_port", "PORT", "--master-port $1"),
    acts("master_addr", "ADDR", "--master-addr $1"),
    part("no_ssh", "", "`--node-rank R`, for this machine's ranks only; the hostfile tells the number of nodes and slots"),
    part("node_rank", "R", "the number of this machine, with --no_ssh"),
    acts("launcher", "NAME", launcher, "no other launcher; all but pdsh give the script no --local_rank"),
    acts("launcher_args", "WORDS", launcher_args, "nothing if empty; options of mpilaunch replace them"),
    needless("force_multi", "", "ranks run on the hosts that are named, also on a single one"),
    needless("no_ssh_check", "", "mpilaunch reports all hosts that it cannot reach"),
    acts("ssh_port", "PORT", "--ssh-option Port=$1"),
    # The program
    part("module", "", "the program is a module: `python -u -m MODULE`; without it, a script: `python -u SCRIPT`"),
    part("no_python", "", "the program is started as it is"),
    part("no_local_rank", "", "the script gets no --local_rank=N"),
    part("venv_script", "FILE", "ranks start as `bash -c 'source FILE; exec ...'`"),
    # Output
    acts("enable_each_rank_log", "DIR", each_rank_log, "`--output-file DIR/{job}_rank{rank}.log --merge-stderr-to-stdout`"),
    acts("log_level", "LEVEL", log_level, "`-vv` for debug, `--quiet` above info"),
    # Devices
    part("bind_cores_to_rank", "", "`--bind-to user:...`: an equal share of --bind_core_list, and OMP_NUM_THREADS its size"),
    part("bind_core_list", "CORES", "the cores of each node, which --bind_cores_to_rank needs"),
    # Others
    refused("save_pid", "", "the shell has the process id of mpilaunch in $!"),
    refused("autotuning", "MODE", "run DeepSpeed's own launcher for it: it starts experiments one after the other"),
)

DIALECT = Dialect(
    name="deepspeed",
    title="deepspeed",
    owner="DeepSpeed's",
    rows=_ROWS,
    defaults={"grace": ("30", "DeepSpeed's default")},
    modules=("deepspeed.launcher.runner", "deepspeed.launcher"),
    finish=finish,
)
