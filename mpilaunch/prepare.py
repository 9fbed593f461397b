"""From settings to a JobSpec: which nodes, which ranks where, what each of them is given.

Reads the files that the user named and starts nothing. What is decided here is decided by the pure modules; this one brings
the settings to them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from mpilaunch import allocation, scheduler, slotmap
from mpilaunch.agent import AgentOptions
from mpilaunch.allocation import Allocation
from mpilaunch.binding import CpuPolicy, GpuPolicy
from mpilaunch.config import load_yaml, read_text
from mpilaunch.environ import forwarded_environment
from mpilaunch.errors import UsageError
from mpilaunch.hostfile import parse_host_list, parse_hostfile
from mpilaunch.jobspec import Deadlines, JobSpec, OutputPolicy
from mpilaunch.mapping import MappingPolicy, map_ranks
from mpilaunch.options import Settings
from mpilaunch.spelling import did_you_mean
from mpilaunch.tags import tag_template


def make_job(settings: Settings, program: Sequence[str], environ: Mapping[str, str]) -> JobSpec:
    """Return the job that the settings ask for; raises UsageError."""
    mapping, cpu = mapping_and_cpus(settings)
    nodes = _allocation(settings, mapping.per_node, environ)
    job_map = map_ranks(nodes, mapping)
    return JobSpec(
        job_id=os.urandom(8).hex(),
        program=tuple(program),
        allocation=nodes,
        job_map=job_map,
        environment=_environment(settings, environ),
        python=settings["python"],
        wdir=settings["wdir"],
        stdin=_stdin(settings, len(job_map.placements)),
        master_addr=settings["master-addr"],
        master_port=settings["master-port"],
        gpu=GpuPolicy(settings["gpus-per-rank"], settings["gpu-bind"], settings["oversubscribe-gpus"]),
        cpu=cpu,
        output=OutputPolicy(
            tag=tag_template(settings["tag"], timestamp=settings["timestamp-output"]),
            directory=settings["output-filename"],
            merge_stderr=settings["merge-stderr-to-stdout"],
            fold=settings["fold"],
            quiet=settings["quiet"],
            verbose=settings["verbose"],
        ),
        deadlines=Deadlines(
            timeout=settings["timeout"],
            grace=settings["grace"],
            start=settings["start-timeout"],
            heartbeat=settings["heartbeat"],
            fanout=settings["fanout"],
        ),
        agent=AgentOptions(ssh_options=_ssh_options(settings), insecure_host_keys=settings["insecure-host-keys"]),
        mpi=settings["mpi"],
        report_file=settings["report"],
        report_bindings=settings["report-bindings"],
    )


# Nodes


def _allocation(settings: Settings, per_node: int | None, environ: Mapping[str, str]) -> Allocation:
    hostfiles, host_lists = _named_hosts(settings)
    slot_map = settings["slot-map"]
    data, positions = load_yaml(slot_map) if slot_map else (None, {})
    found = None
    if not hostfiles and not host_lists:
        from_slot_map = (slotmap.hosts(data, slot_map, positions), slot_map) if slot_map else None
        found = scheduler.discover(environ, _plain_text) or from_slot_map
    nodes = allocation.from_sources(
        [entry for path in hostfiles for entry in parse_hostfile(read_text(path, "hostfile"), path)],
        [entry for text in host_lists for entry in parse_host_list(text, settings.provenance("host"))],
        found,
        hostfile_source=", ".join(hostfiles),
        agent=settings["agent"],
        per_node=per_node,
        local_names=_local_names(),
        local_slots=len(os.sched_getaffinity(0)),
    )
    return slotmap.apply_slot_map(nodes, data, slot_map, positions) if slot_map else nodes


def _named_hosts(settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the hostfiles and the host lists that count: those of the strongest layer that names hosts.

    So `--host` filters a `--hostfile` beside it, and replaces a hostfile that a profile or MPILAUNCH_HOSTFILE names.
    """
    strongest = max(settings.layer("hostfile"), settings.layer("host"))
    hostfiles, host_lists = (settings[name] if settings.layer(name) == strongest else () for name in ("hostfile", "host"))
    return hostfiles, host_lists


def _local_names() -> frozenset[str]:
    """Return the names of this machine that are certain without asking a name server."""
    own = os.uname().nodename
    return frozenset({"localhost", "127.0.0.1", "::1", own, own.partition(".")[0]})


def _plain_text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


# Ranks

_MAP_BY_HINT = "--map-by is slot, node or ppr:N:node; :OVERSUBSCRIBE and :PE=N may follow"


def mapping_and_cpus(settings: Settings) -> tuple[MappingPolicy, CpuPolicy]:
    """Return what -np, -N, --map-by and the options beside them say together; raises UsageError."""
    text = settings["map-by"]
    words = text.lower().split(":")
    map_by, per_node = words.pop(0) or "slot", settings["npernode"]
    if map_by == "ppr":
        map_by, per_node = "slot", _per_node_of_ppr(text, words, per_node)
    if map_by not in ("slot", "node"):
        near = did_you_mean(map_by, ("slot", "node", "ppr"))
        raise UsageError("map-by", f"--map-by: unknown policy '{text}'{near}", hint=_MAP_BY_HINT)
    oversubscribe, cpus = settings["oversubscribe"], settings["cpus-per-rank"]
    for word in words:
        elements = re.fullmatch("pe=([1-9][0-9]{0,5})", word, re.ASCII)
        if elements:
            cpus = int(elements[1])
        elif word in ("oversubscribe", "nooversubscribe"):
            oversubscribe = word == "oversubscribe"
        else:
            raise UsageError("map-by", f"--map-by: unknown modifier '{word}' in '{text}'", hint=_MAP_BY_HINT)
    bind_to = settings["bind-to"]
    # As for mpirun, who asks for 4 cores a rank wants them bound; `--bind-to none` said outright stands.
    if cpus > 1 and settings.layer("bind-to") == 0:
        bind_to = "core"
    policy = MappingPolicy(settings["np"], map_by, per_node, settings["rank-by"], oversubscribe)
    return policy, CpuPolicy(bind_to, cpus)


def _per_node_of_ppr(text: str, words: list[str], per_node: int | None) -> int:
    """Take N and the resource off the words after "ppr"; return N."""
    if len(words) < 2 or not re.fullmatch("[1-9][0-9]{0,5}", words[0], re.ASCII) or words[1] != "node":
        raise UsageError("map-by", f"--map-by: '{text}' is not ppr:N:node", hint="like --map-by ppr:2:node, or -N 2")
    count = int(words.pop(0))
    words.pop(0)
    if per_node not in (None, count):
        raise UsageError("option-conflict", f"-N {per_node} and --map-by {text} ask for different ranks on each node")
    return count


def _stdin(settings: Settings, ranks: int) -> str:
    """Return who gets stdin; a terminal is for nobody unless the user says so, or a job in the background would stop."""
    who: str = settings["stdin"]
    if settings.layer("stdin") == 0 and os.isatty(0):
        return "none"
    if who in ("all", "none"):
        return who
    if not re.fullmatch("[0-9]{1,9}", who, re.ASCII):
        near = did_you_mean(who, ("all", "none"))
        raise UsageError("stdin", f"--stdin: '{who}' is not a rank, all or none{near}")
    if int(who) >= ranks:
        raise UsageError("stdin", f"--stdin: there is no rank {who}: the job has ranks 0 to {ranks - 1}")
    return str(int(who))


# What the ranks and the agents are given


def _environment(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    return forwarded_environment(
        environ,
        [*(f"OMPI_MCA_{parameter}" for parameter in settings["mca"]), *settings["export"]],
        [(path, read_text(path, "env file")) for path in settings["env-file"]],
        forward_defaults=not settings["no-forward"],
    )


def _ssh_options(settings: Settings) -> tuple[str, ...]:
    options: tuple[str, ...] = settings["ssh-option"]
    for option in options:
        if not re.match("[A-Za-z]+=", option):
            said = f"--ssh-option: '{option}' is not NAME=VALUE"
            raise UsageError("ssh-option", said, hint="like --ssh-option ProxyJump=login, see ssh_config(5)")
    return options
