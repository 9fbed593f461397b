"""From settings to a JobSpec: which nodes, which ranks where, what each of them is given.

Reads the files that the user named and starts nothing. What is decided here is decided by the pure modules; this one brings
the settings to them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from mpilaunch.agent import AgentOptions
from mpilaunch.config import read_text
from mpilaunch.errors import UsageError, reason_of
from mpilaunch.hosts import kubernetes as operators
from mpilaunch.hosts.allocation import Allocation
from mpilaunch.job import checkpoints
from mpilaunch.job.environment.forward import environment_edits, forwarded_environment
from mpilaunch.job.spec import App, CheckpointPolicy, Deadlines, JobSpec, OutputPolicy, RestartPolicy, check_stdin_rank
from mpilaunch.job.tags import parse_tag, tag_template
from mpilaunch.options import OPTIONS, RESTARTS, Settings
from mpilaunch.placement.binding import GpuPolicy
from mpilaunch.placement.map_by import mapping_and_cpus
from mpilaunch.placement.mapping import JobMap
from mpilaunch.placement.policy import MappingPolicy
from mpilaunch.placement.program_shares import Share, map_apps
from mpilaunch.prepare_nodes import choose_nodes, found_agent, listed, local_names, own_values, rankfile_of
from mpilaunch.text import did_you_mean, is_whole_number
from mpilaunch.words import Section, laid_over

START_IN_POD = 300.0
"""Seconds of --start-timeout when this is a pod and nobody says it."""

MOST_OPEN_PODS = 32
"""Pods whose kubectl stays open unasked: each takes 50 MB of the launcher's memory."""


def make_job(settings: Settings, program: Sequence[str], environ: Mapping[str, str]) -> JobSpec:
    """Return the job of one program that the settings ask for; raises UsageError."""
    return make_job_of_sections(settings, [Section(list(program))], environ)


def make_job_of_sections(settings: Settings, sections: Sequence[Section], environ: Mapping[str, str]) -> JobSpec:
    """Return the job that the settings and what is said for each program ask for; raises UsageError."""
    of_each = [Settings(laid_over(settings.by_name, section.said)) for section in sections]
    mapping, cpu = mapping_and_cpus(settings)
    lines = rankfile_of(mapping)
    agent = found_agent(settings, environ)
    nodes, own_slots = choose_nodes(settings, sections, mapping, lines, environ, agent)
    mapping, cpu = listed(mapping, cpu, lines, settings, nodes)
    shares: tuple[Share, ...] = (Share(sections[0].program[0], mapping),)
    if len(sections) > 1:
        policies = [mapping_and_cpus(own)[0] for own in of_each]
        shares = tuple(map(_share, range(1, len(sections) + 1), sections, policies, own_slots))
    # A map that depends on what the nodes are made of is made when they have been asked.
    pending = shares if any(share.policy.needs_topology for share in shares) else ()
    restarts = _restarts(settings, nodes, mapping, environ)
    if restarts.keeps_idle:
        if pending or len(shares) > 1:
            told = "--spares and --nnodes need the map of one program, made before the nodes are asked"
            raise UsageError("option-conflict", told, hint="say one program, and --map-by slot, node or ppr:N:node")
        from mpilaunch.job.restarts import first_lineup

        lineup = first_lineup(restarts, nodes, mapping)
        nodes, job_map = lineup.allocation, lineup.job_map
    else:
        job_map = JobMap((), ()) if pending else map_apps(nodes, shares)
    forwarded, of_apps = _environments(settings, sections, of_each, environ)
    apps = tuple(
        App(
            tuple(section.program),
            variables,
            own["wdir"] if "wdir" in section.said else None,
            environment_edits(own["unset-env"], own["prepend-env"], own["append-env"]),
        )
        for section, own, variables in zip(sections, of_each, of_apps, strict=True)
    )
    return JobSpec(
        job_id=os.urandom(8).hex(),
        apps=apps,
        allocation=nodes,
        job_map=job_map,
        pending=pending,
        environment=forwarded,
        python=settings["python"],
        wdir=settings["wdir"],
        stdin=_stdin(settings, None if pending else len(job_map.placements)),
        continue_on_error=settings["continue-on-error"],
        master_addr=settings["master-addr"],
        master_port=settings["master-port"],
        gpu=GpuPolicy(settings["gpus-per-rank"], settings["gpu-bind"], settings["oversubscribe-gpus"]),
        cpu=cpu,
        output=OutputPolicy(
            tag=tag_template(settings["tag"], timestamp=settings["timestamp-output"]),
            directory=_directory(settings["output-filename"])[0],
            stdout_file=_file_template(settings, "output-file"),
            stderr_file=_file_template(settings, "error-file"),
            copy=_directory(settings["output-filename"])[1] if settings["copy"] is None else settings["copy"],
            merge_stderr=settings["merge-stderr-to-stdout"],
            fold=settings["fold"],
            quiet=settings["quiet"],
            verbose=settings["verbose"],
        ),
        deadlines=Deadlines(
            timeout=settings["timeout"],
            mpi_init=settings["mpi-init-timeout"],
            grace=settings["grace"],
            start=_start_timeout(settings, environ),
            heartbeat=settings["heartbeat"],
            reconnect=settings["reconnect-timeout"],
        ),
        fanout=settings["fanout"],
        patient=operators.in_pod(environ),
        agent=AgentOptions(
            ssh_options=_ssh_options(settings) + (agent.ssh_options if agent else ()),
            insecure_host_keys=settings["insecure-host-keys"],
            namespace=settings["namespace"],
            container=settings["container"] or (agent.container if agent else None),
            context=settings["context"],
            call_back=_called_back(settings["call-back"], nodes, environ),
            connectors=settings["connectors"],
        ),
        mpi=settings["mpi"],
        pmi_port=settings["pmi-port"],
        pmix_library=settings["pmix-library"],
        universe_size=settings["universe-size"],
        checkpoints=_checkpoints(settings),
        report_file=settings["report"],
        report_bindings=settings["report-bindings"] or ":report" in settings["bind-to"].lower(),
        show_secrets=settings["show-secrets"],
        restarts=restarts,
    )


# Ranks


def _restarts(
    settings: Settings, nodes: Allocation, mapping: MappingPolicy, environ: Mapping[str, str]
) -> RestartPolicy:
    if not any(settings.layer(option.name) for option in OPTIONS if option.group == RESTARTS):
        return RestartPolicy()
    from mpilaunch.job.restarts import restart_policy  # most jobs are not started again

    return restart_policy(settings, nodes, mapping, local_names(environ))


def _share(number: int, section: Section, policy: MappingPolicy, slots: dict[int, int] | None) -> Share:
    name = section.program[0]
    if policy.ranks is None and policy.per_node is None:
        if slots is None:
            told = f"program {number} ({name}): it is not said how many ranks it has, and the job has other programs too"
            hint = "say -np for each program, or '--' before a program that has ':' among its arguments"
            raise UsageError("rank-count", told, hint=hint)
        policy = policy._replace(ranks=sum(slots.values()))
    return Share(name, policy, slots)


def _stdin(settings: Settings, ranks: int | None) -> str:
    """Return who gets stdin; a terminal is for nobody unless the user says so, or a job in the background would stop.

    `ranks` is None when their number is not known yet.
    """
    who: str = settings["stdin"]
    if settings.layer("stdin") == 0 and os.isatty(0):
        return "none"
    if who in ("all", "none"):
        return who
    if not is_whole_number(who, 9):
        near = did_you_mean(who, ("all", "none"))
        raise UsageError("stdin", f"--stdin: '{who}' is not a rank, all or none{near}")
    if ranks is not None:
        check_stdin_rank(who, ranks)
    return str(int(who))


# What the ranks and the agents are given


def _environments(
    settings: Settings, sections: Sequence[Section], of_each: Sequence[Settings], environ: Mapping[str, str]
) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return what is forwarded to every rank, and what to those of each program."""
    # Where a program has a word of its own on what goes unsaid, each gets that by itself.
    apart = any("forward" in section.said for section in sections)
    files = [(path, read_text(path, "env file")) for path in settings["env-file"]]
    exports = [*_parameters(settings["mca"], settings.provenance("mca")), *settings["export"]]
    forwarded = forwarded_environment(environ, exports, files, forward="none" if apart else settings["forward"])
    of_apps = []
    for section, own in zip(sections, of_each, strict=True):
        files = [(path, read_text(path, "env file")) for path in own_values(section, "env-file")]
        unsaid = {} if not apart else forwarded_environment(environ, [], forward=own["forward"])
        said = forwarded_environment(environ, own_values(section, "export"), files, forward="none")
        of_apps.append({**{name: value for name, value in unsaid.items() if name not in forwarded}, **said})
    return forwarded, of_apps


def _parameters(items: Sequence[str], provenance: str) -> list[str]:
    """Return the MCA parameters of a config file or of the environment as exports."""
    if items:
        from mpilaunch import mca

        for item in items:
            if mca.acts(item.partition("=")[0]):
                told = f"{provenance}: mca parameter '{item}' steers mpirun, and does so only on the command line"
                raise UsageError("mca-parameter", told, hint="say it with an option of mpilaunch, see docs/dialects.md")
    return [f"OMPI_MCA_{item}" for item in items]


def _directory(text: str | None) -> tuple[str | None, bool | None]:
    """Return the directory of --output-filename, and what mpirun's DIR:nocopy says of printing it too, None for nothing."""
    path, colon, modifiers = (text or "").partition(":")
    said = set(modifiers.lower().replace(":", ",").split(","))
    if not colon or said - {"nocopy", "copy", "nojobid", "raw"}:
        return text, None
    return path, True if "copy" in said else False if "nocopy" in said else None


def _file_template(settings: Settings, name: str) -> str | None:
    """Return the template of --output-file or --error-file; raises UsageError unless it can name files."""
    text: str | None = settings[name]
    if text is not None:
        fields = {field for field, _ in parse_tag(text, f"--{name}").pieces if field}
        if fields & {"time", "stream"}:
            told = f"--{name}: '{text}': a file's name cannot change with the time, and a file has one stream"
            raise UsageError("tag-format", told, hint="use {rank}, {local_rank}, {node_rank}, {host} or {job}")
    return text


def _called_back(choice: str, nodes: Allocation, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the agents behind which the daemons call back."""
    agents = [node.agent for node in nodes.nodes]
    if choice == "always":
        return tuple(sorted({*agents} - {"local"}))
    # From outside the cluster, pods that reach this machine are the exception.
    many = choice == "auto" and operators.in_pod(environ) and agents.count("kubectl") > MOST_OPEN_PODS
    return ("kubectl",) if many else ()


def _checkpoints(settings: Settings) -> CheckpointPolicy | None:
    prefix, interval = settings["checkpoint-prefix"], settings["checkpoint-interval"]
    if prefix is None:
        if interval is not None:
            told = "--checkpoint-interval says when, but nothing says where the ranks save"
            raise UsageError("option-conflict", told, hint="add --checkpoint-prefix DIR, a directory that all nodes see")
        return None
    prefix = os.path.abspath(prefix)
    try:
        restart = checkpoints.find_set(prefix)
    except OSError as error:
        raise UsageError("checkpoint-prefix", f"--checkpoint-prefix {prefix}: {reason_of(error)}") from error
    return CheckpointPolicy(prefix, restart, interval, settings["checkpoint-signal"])


def _start_timeout(settings: Settings, environ: Mapping[str, str]) -> float:
    """Return how long nodes are awaited; a pod whose image is still being fetched takes longer than any machine."""
    said: float = settings["start-timeout"]
    return START_IN_POD if operators.in_pod(environ) and settings.layer("start-timeout") == 0 else said


def _ssh_options(settings: Settings) -> tuple[str, ...]:
    options: tuple[str, ...] = settings["ssh-option"]
    for option in options:
        if not re.match("[A-Za-z][A-Za-z0-9]*=", option):
            said = f"--ssh-option: '{option}' is not NAME=VALUE"
            raise UsageError("ssh-option", said, hint="like --ssh-option ProxyJump=login, see ssh_config(5)")
    return options
