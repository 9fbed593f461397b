"""Options of torchrun, which is `python -m torch.distributed.run` (torch/distributed/run.py, 2.0 to 2.13).

torchrun is started on every node; here one command starts the ranks on all nodes, or only this machine's part of the job, where
the line gives --node-rank or a Slurm step runs it once on each node. It never imports torch, and starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import Template

from mpilaunch.cli.dialects.frameworks.common import LOCAL_RANK, ByHand, fill_local_rank, program
from mpilaunch.cli.dialects.rows import (
    Dialect,
    InvalidArgument,
    Surroundings,
    Translation,
    acts,
    ignored,
    needless,
    part,
    weak,
)
from mpilaunch.defaults import MASTER_PORT
from mpilaunch.text import escape_braces

_ADDRESS, _PORT, _C10D_PORT = "127.0.0.1", str(MASTER_PORT), "29400"
"""torchrun's defaults of --master-addr, --master-port, and of the port of --rdzv-endpoint with c10d."""
_LEGACY = "torch.distributed.launch"
"""The module before torchrun: it passes --local-rank to the script, unless --use-env is given."""

_LOGS = "--output-filename DIR writes each rank's output to files; filter those"

# Functions of rows


def role(name: str) -> Translation:
    """--role NAME: ROLE_NAME, and the prefix of lines."""
    return Translation(("--export", f"ROLE_NAME={name}"), parts={"role": name})


def rdzv_backend(name: str) -> Translation:
    """--rdzv-backend static, c10d or etcd: mpilaunch assigns the ranks itself."""
    if name not in ("static", "c10d", "etcd", "etcd-v2"):
        hint = "leave it out: mpilaunch assigns the ranks and chooses MASTER_ADDR and MASTER_PORT"
        raise InvalidArgument(f"rendezvous backend '{name}' is not supported", hint)
    note = f"--rdzv-backend {name} has no effect: mpilaunch assigns the ranks itself"
    return Translation(notes=((note, 0 if name.startswith("etcd") else 1),), parts={"backend": name})


def rdzv_id(name: str) -> Translation:
    """--rdzv-id ID: TORCHELASTIC_RUN_ID, and the first part of the name of a run's directory."""
    return Translation(("--export", f"TORCHELASTIC_RUN_ID={name}"), parts={"run": name})


_BINDINGS = {"node": "numa", "socket": "socket", "core-complex": "l3cache"}


def numa_binding(mode: str) -> Translation:
    """--numa-binding node, socket or core-complex: the object that a rank is bound to, near its GPU."""
    if mode not in _BINDINGS:
        hint = "use node, socket or core-complex, or --bind-to core with --cpus-per-rank N for cores of one rank alone"
        raise InvalidArgument(f"binding '{mode}' is not supported", hint)
    return Translation(("--bind-to", _BINDINGS[mode]))


_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGCONT"})


def signals(names: str) -> Translation:
    """--signals-to-handle SIGTERM,SIGUSR1: mpilaunch always handles the usual ones."""
    others = ", ".join(sorted({name.strip() for name in names.split(",")} - _SIGNALS - {"SIGQUIT", ""}))
    if others:
        raise InvalidArgument(f"mpilaunch does not forward {others}", "it handles " + ", ".join(sorted(_SIGNALS)))
    return Translation(notes=(("--signals-to-handle has no effect: mpilaunch handles these signals by default", 1),))


def nproc_per_node(number: str) -> Translation:
    """--nproc-per-node N, gpu, xpu, cpu or auto: the ranks of each node."""
    return Translation(("--npernode", "gpu" if number == "xpu" else number), parts={"nproc": number})


def logs_specs(name: str) -> Translation:
    """--logs-specs default: --redirects, --tee and --log-dir."""
    if name != "default":
        raise InvalidArgument(f"'{name}' is not supported", "leave it out: " + _LOGS)
    return Translation()


# All options together


def finish(parts: Mapping[str, str], words: Sequence[str], around: Surroundings) -> tuple[Translation, list[str]]:
    """Return the nodes and the output that the options describe together, and the program with its interpreter."""
    of_program = {"python": around.environ.get("PYTHON_EXEC", ""), **parts}
    if "run-path" in parts:
        of_program = {"python": of_program["python"]}
    local_rank = ["--local-rank=${local_rank}"] if parts.get("started") == _LEGACY and "use-env" not in parts else []
    filled, started = fill_local_rank(_expanded(program(of_program, words, around.environ, local_rank)))
    return _nodes(parts, around) + output(parts, around.environ) + filled, started


def _expanded(words: Sequence[str]) -> list[str]:
    """Return the program with torchrun's macro, `${local_rank}`, replaced in its arguments, and "$$" by "$"."""
    return [*words[:1], *(Template(word).safe_substitute(local_rank=LOCAL_RANK) for word in words[1:])]


def _nodes(parts: Mapping[str, str], around: Surroundings) -> Translation:
    """Return the options for the nodes: those that are named, this machine, or this machine as a part of the job."""
    result = Translation() if "nproc" in parts else weak("--npernode", "1")
    nnodes = parts.get("nnodes", "1")
    fewest, _, most = nnodes.partition(":")
    if "standalone" in parts and (most or fewest) != "1":
        hint = "leave --standalone out to use several nodes"
        raise InvalidArgument(f"--standalone is one machine, but --nnodes is {nnodes}", hint)
    rank = parts.get("node-rank", _rank_in_step(most or fewest, around.environ))
    by_hand = rank is not None and not around.names_hosts
    endpoint = (_endpoint(parts) if by_hand else None) or (_ADDRESS, _PORT)
    result += ByHand(nnodes, rank, *endpoint).translation(around, given="nnodes" in parts)
    if "rdzv-endpoint" in parts and "--node-rank" not in result.words:
        note = "--rdzv-endpoint has no effect: mpilaunch chooses MASTER_ADDR and MASTER_PORT; --master-addr sets them"
        result += Translation(notes=((note, 1),))
    return result


def _rank_in_step(nnodes: str, environ: Mapping[str, str]) -> str | None:
    """Return the node's number where a Slurm step runs torchrun once on each of several nodes: `srun torchrun ...`."""
    each = nnodes != "1" and environ.get("SLURM_STEP_NUM_TASKS") == environ.get("SLURM_STEP_NUM_NODES") == nnodes
    return environ.get("SLURM_NODEID") if each else None


def _endpoint(parts: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the host and the port of --rdzv-endpoint."""
    text = parts.get("rdzv-endpoint", "")
    match = re.fullmatch(r"(\[[^\]]+\]|[^:]+)(?::([0-9]+))?", text)
    if text and match is None:
        raise InvalidArgument(f"--rdzv-endpoint '{text}' is not HOST:PORT", "like node01:29500, or [fe80::1]:29500")
    return match and (match[1].strip("[]"), match[2] or (_C10D_PORT if parts.get("backend") == "c10d" else _PORT))


_Streams = frozenset[tuple[str, int]]
"""Streams of ranks: a local rank, "" for all, and 1 for stdout or 2 for stderr."""
_ALL = ""


def _streams(parts: Mapping[str, str], name: str) -> _Streams:
    """Return the streams of --redirects or --tee: 0 is none, 1 stdout, 2 stderr, 3 both; of all ranks, or as in 0:1,2:3."""
    text = parts.get(name, "0")
    if not re.fullmatch("[0-3]|[0-9]{1,6}:[0-3](,[0-9]{1,6}:[0-3])*", text):
        hint = "0 is none, 1 stdout, 2 stderr, 3 both; or these of single local ranks, as in 0:1,1:2"
        raise InvalidArgument(f"--{name} {text} is not 0, 1, 2 or 3", hint)
    named = [item.rpartition(":") for item in text.split(",")]
    return frozenset((rank, number) for rank, _, streams in named for number in (1, 2) if int(streams) & number)


def output(parts: Mapping[str, str], environ: Mapping[str, str]) -> Translation:
    """Return the prefix of lines and the files of --redirects, --tee and --log-dir."""
    redirected, copied, folder = _streams(parts, "redirects"), _streams(parts, "tee"), parts.get("log-dir")
    of_all = {number for rank, number in copied if rank == _ALL}
    only_files = {(rank, number) for rank, number in redirected - copied if number not in of_all}
    result = Translation()
    if copied:
        result += weak("--tag", _prefix(parts, environ))
    if folder is None:
        if only_files:
            raise InvalidArgument("--redirects without --log-dir", "add --log-dir DIR, the directory for the files")
        return result
    if not redirected and not copied:
        note = "--log-dir has no effect without --redirects or --tee: nothing is written there"
        return result + Translation(notes=((note, 0),))
    if only_files and copied:
        hint = "give --redirects and --tee the same streams, or leave one out"
        raise InvalidArgument("--redirects and --tee of different streams are not supported", hint)
    files = f"{escape_braces(folder.rstrip('/'))}/{_run(parts)}/attempt_{{restart}}/{{local_rank}}"
    for number, flag, stream in ((1, "--output-file", "stdout"), (2, "--error-file", "stderr")):
        ranks = sorted({rank for rank, stream_number in redirected | copied if stream_number == number})
        if ranks:
            result += Translation((flag, f"{files}/{stream}.log"))
            result += Translation() if _ALL in ranks else Translation((f"{flag}-ranks", ",".join(ranks)))
    return result + Translation(("--copy",) if copied else ())


def _run(parts: Mapping[str, str]) -> str:
    """Return the template for the name of a run's directory: torchrun's ID_RANDOM, with the node rank, of which each has one.

    Like torchrun's, the id is `none` where it is not given, and random with --standalone.
    """
    name = parts.get("run", "" if "standalone" in parts else "none")
    if "/" in name:
        message = f"--rdzv-id {name}: an id with '/' cannot be part of the name of a directory in --log-dir"
        raise InvalidArgument(message, "leave '/' out of the id")
    return (f"{escape_braces(name)}_" if name else "") + "{run}_{node_rank}"


def _prefix(parts: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return the tag of lines: torchrun's [ROLE RANK]: or that of the template."""
    name = escape_braces(parts.get("role", "default"))
    template = parts.get("log-line-prefix-template") or environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
    if template is None:
        return f"[{name}{{rank}}]:"
    fields = {"role_name": name, "rank": "{rank}", "local_rank": "{local_rank}"}
    pieces = re.split(r"(\$\w+|\$\{\w+\})", template)
    return "".join(
        fields.get(piece.strip("${}"), escape_braces(piece)) if piece[:1] == "$" else escape_braces(piece) for piece in pieces
    )


# Rows

LOG_DIR = "`--output-file DIR/RUN/attempt_{restart}/{local_rank}/stdout.log`, `--error-file .../stderr.log` for these streams"
_ROWS = (
    # Ranks and nodes
    part("nnodes", "N", "`--nnodes N` or MIN:MAX; 1, the default, is this machine, unless hosts are named"),
    acts("nproc-per-node", "N", nproc_per_node, "`--npernode N`, also gpu, cpu or auto; 1 is the default"),
    part("node-rank", "R", "`--node-rank R`, for this machine's ranks only; with named hosts, 0 has no effect"),
    part("standalone", "", "this machine"),
    acts("master-addr", "ADDR", "--master-addr $1"),
    acts("master-port", "PORT", "--master-port $1"),
    # Rendezvous
    acts("rdzv-backend", "NAME", rdzv_backend, "nothing: mpilaunch assigns the ranks itself"),
    part("rdzv-endpoint", "HOST:PORT", "MASTER_ADDR and MASTER_PORT with `--node-rank`, else nothing"),
    acts("rdzv-id", "ID", rdzv_id, "`--export TORCHELASTIC_RUN_ID=ID`, and the directory in --log-dir begins with ID"),
    ignored("rdzv-conf", "SETTINGS", "--start-timeout sets how long the nodes may take to start"),
    ignored("local-addr", "ADDR", "--master-addr sets the address of rank 0; libraries have variables: -x GLOO_SOCKET_IFNAME"),
    # The program
    part("module m", "", "the program is a module: `python -u -m MODULE`; without it, a script: `python -u SCRIPT`"),
    part("use-env", "", "nothing for torchrun; without it `torch.distributed.launch` gives the script `--local-rank=N`"),
    part("no_python", "", "the program is started as it is"),
    part("run-path", "", "the program is a script"),
    part("python", "PATH", "the interpreter; without it PYTHON_EXEC, or python3 of PATH here"),
    needless("start-method", "METHOD", "every rank is a process of its own, started with exec"),
    acts("role", "NAME", role, "`--export ROLE_NAME=NAME`, and the name in the prefix of --tee"),
    # Output
    part("log-dir", "DIR", LOG_DIR),
    part("redirects r", "STREAMS", "0, 1, 2 or 3, or 0:1,1:2 for local ranks: with --log-dir, these go only to files"),
    part("tee t", "STREAMS", "0, 1, 2 or 3: tags lines with [ROLE RANK]:, and with --log-dir also writes files"),
    part("log-line-prefix-template", "TEMPLATE", "`--tag`, with ${role_name}, ${rank} and ${local_rank}"),
    acts("local-ranks-filter", "RANKS", "--print-local-ranks $1"),
    ignored("duplicate-stdout-filters duplicate-stderr-filters", "WORDS", _LOGS),
    acts("logs-specs", "NAME", logs_specs, "nothing: default is the only one"),
    ignored("event-log-handler", "NAME", "--report FILE has the node, times and exit code of each rank"),
    # Devices
    acts("numa-binding", "MODE", numa_binding, "`--bind-to`: numa for node, l3cache for core-complex, socket"),
    acts("virtual-local-rank", "", "--gpu-bind virtual"),
    # Ends
    acts("max-restarts", "N", "--max-restarts $1"),
    needless("monitor-interval", "SECONDS", "mpilaunch notices the end of a rank at once"),
    acts("signals-to-handle", "SIGNALS", signals, "nothing: mpilaunch handles and forwards signals by default"),
    acts("shutdown-timeout", "SECONDS", "--grace $1"),
)

DIALECT = Dialect(
    name="torchrun",
    title="torchrun",
    owner="torchrun's",
    rows=_ROWS,
    defaults={"grace": ("30", "torchrun's default")},
    modules=("torch.distributed.run", _LEGACY),
    prefix="PET_",
    finish=finish,
)
