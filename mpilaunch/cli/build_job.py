"""Builds a JobSpec from the settings: the nodes, the placement of the ranks, and the environment of each program.

Reads the files that the user names, and starts nothing. Pure modules decide; this one passes them the settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from mpilaunch.agent import AgentOptions
from mpilaunch.cli import dialects
from mpilaunch.cli.files import read_trusted
from mpilaunch.cli.options import OPTIONS, RESTARTS
from mpilaunch.cli.select_nodes import add_listed_nodes, choose_nodes, operator_agent, own_values, rankfile_of
from mpilaunch.errors import UsageError, reason_of
from mpilaunch.hosts import kubernetes
from mpilaunch.hosts.allocation import Allocation, resize
from mpilaunch.hosts.nodeset import Span, parse_numbers
from mpilaunch.job.environment.contracts import need_endpoints, need_rendezvous
from mpilaunch.job.environment.forward import environment_edits, forwarded_environment
from mpilaunch.job.environment.templates import check_templates, variable_templates
from mpilaunch.job.output.tags import parse_tag, tag_template
from mpilaunch.job.roles import MOST_PORT, check_roles, parse_after
from mpilaunch.job.settings import Layer, Section, Setting, Settings, Value, merge_program_settings
from mpilaunch.job.spec import App, CheckpointPolicy, Deadlines, JobSpec, OutputPolicy, Part, RestartPolicy, settle_ranks
from mpilaunch.job.worlds import PORTS
from mpilaunch.placement.binding import GpuPolicy
from mpilaunch.placement.map_by import PlacementOptions, cpus_of, placement_policies
from mpilaunch.placement.mapping import JobMap, MappingPolicy
from mpilaunch.placement.program_shares import Share, map_apps
from mpilaunch.text import did_you_mean, is_whole_number
from mpilaunch_agents.registry import calling_back

START_IN_POD = 300.0
"""Default of --start-timeout in a pod, in seconds: its image may have to be pulled first."""


def make_job(settings: Settings, sections: Sequence[Section], environ: Mapping[str, str]) -> JobSpec:
    """Build the job of one or more programs from its settings and those of each program; raises UsageError."""
    part, settings = _part(settings)
    of_each = [Settings(merge_program_settings(settings.by_name, section.settings)) for section in sections]
    mapping, cpu = placement_policies(placement_options(settings))
    lines = rankfile_of(mapping)
    agent = operator_agent(settings, environ)
    nodes, own_slots = choose_nodes(settings, sections, mapping, lines, environ, agent)
    mapping, cpu = add_listed_nodes(mapping, cpu, lines, settings, nodes)
    if part is not None:  # whoever reads the messages and files of all parts sees where each comes from
        nodes = nodes._replace(nodes=tuple(node._replace(name=os.uname().nodename) for node in nodes.nodes))
    shares: tuple[Share, ...] = (Share(sections[0].program[0], mapping),)
    if len(sections) > 1:
        policies = [placement_policies(placement_options(own))[0] for own in of_each]
        if settings["dialect"] in ("hydra", "intel") and mapping.per_node and all(policy.ranks for policy in policies):
            # There -ppn N is a limit for all programs together: ranks go on to the next host after N.
            nodes = resize(nodes, mapping.per_node)
            policies = [policy._replace(per_node=None) for policy in policies]
        shares = tuple(map(_share, range(1, len(sections) + 1), sections, policies, own_slots))
    # A map that depends on the nodes' topology is made once the nodes have reported it.
    slots_by = settings["npernode"].lower() if isinstance(settings["npernode"], str) else None
    pending = shares if slots_by or any(share.policy.needs_topology for share in shares) else ()
    restarts = _restarts(settings, nodes, mapping)
    if pending and restarts.max_nodes == restarts.min_nodes is not None and not restarts.spares:
        # A fixed number of nodes: the first of them, so that none is reserved.
        able = [node.index for node in nodes.nodes if node.slots]
        nodes = nodes._replace(nodes=nodes.nodes[: able[restarts.min_nodes - 1] + 1])
        restarts = restarts._replace(min_nodes=None, max_nodes=None, pool=nodes if restarts.limit else None)
    if restarts.reserves_nodes:
        if pending or len(shares) > 1:
            message = "--spares and --nnodes need a job of one program whose map does not depend on the nodes' topology"
            raise UsageError("option-conflict", message, hint="use one program, and --map-by slot, node or ppr:N:node")
        from mpilaunch.job.restarts import first_layout

        layout = first_layout(restarts, nodes, mapping)
        nodes, job_map = layout.allocation, layout.job_map
    else:
        job_map = JobMap((), ()) if pending else map_apps(nodes, shares)
    _check_conflicts(settings)
    directory, copied = _directory(settings["output-filename"])
    in_pod = kubernetes.in_pod(environ)
    slot_count = None if slots_by else nodes.slot_count
    job = JobSpec(
        job_id=os.urandom(8).hex(),
        apps=_programs(settings, sections, of_each, part),
        allocation=nodes,
        job_map=job_map,
        pending=pending,
        slots_by=slots_by,
        part=part,
        stdin=_stdin(settings, part),
        gpu=GpuPolicy(settings["gpus-per-rank"], settings["gpu-bind"], settings["oversubscribe-gpus"]),
        cpu=cpu,
        output=OutputPolicy(
            tag=tag_template(settings["tag"], timestamp=settings["timestamp-output"]),
            directory=directory,
            stdout_file=_file_template(settings, "output-file"),
            stderr_file=_file_template(settings, "error-file"),
            stdout_ranks=_local_ranks(settings, "output-file-ranks"),
            stderr_ranks=_local_ranks(settings, "error-file-ranks"),
            copy=copied if settings["copy"] is None else settings["copy"],
            merge_stderr=settings["merge-stderr-to-stdout"],
            local_ranks=_local_ranks(settings, "print-local-ranks"),
            fold=settings["fold-style"] if settings["fold"] else None,
            **settings.fields("quiet", "verbose"),
        ),
        deadlines=Deadlines(
            mpi_init=settings["mpi-init-timeout"],
            start=START_IN_POD if in_pod and settings.layer("start-timeout") == 0 else settings["start-timeout"],
            reconnect=settings["reconnect-timeout"],
            **settings.fields("timeout", "grace", "heartbeat"),
        ),
        patient=in_pod,
        agent=AgentOptions(
            ssh_options=_ssh_options(settings) + (agent.ssh_options if agent else ()),
            container=settings["container"] or (agent.container if agent else None),
            call_back=calling_back(settings["call-back"], (node.agent for node in nodes.nodes), in_pod=in_pod),
            **settings.fields("insecure-host-keys", "namespace", "context", "connectors"),
        ),
        universe_size={"SYSTEM": slot_count, "INFINITE": None}.get(settings["universe-size"], settings["universe-size"]),
        threads=_threads(settings),
        checkpoints=_checkpoints(settings),
        report_file=settings["report"],
        report_bindings=settings["report-bindings"] or ":report" in settings["bind-to"].lower(),
        restarts=restarts,
        directory=_current_directory(environ),
        head_python=_python_of_head(environ),
        **settings.fields("python", "wdir", "continue-on-error", "master-addr", "master-port", "fanout", "show-secrets"),
        **settings.fields("skip-unreachable", "bare", "bare-if-single", "leave-running", "pmi-port", "pmix-library"),
        mpi="none" if settings["bare"] else settings["mpi"],
        profiles=settings["profile"] or (),
    )
    if not pending:
        job = settle_ranks(job)
    if cpu.chosen:  # by the number of the rank
        job = job._replace(cpu=cpu._replace(chosen=((),) * job.first_rank + cpu.chosen))
    forwarded, apps = _environments(settings, sections, of_each, environ, job)
    check_templates(apps)
    return job._replace(environment=forwarded, apps=apps)


# Ranks


def _programs(
    settings: Settings, sections: Sequence[Section], of_each: Sequence[Settings], part: Part | None
) -> tuple[App, ...]:
    """Return the programs without their environment; raises UsageError for roles that cannot start."""
    apps = tuple(
        App(tuple(section.program), template=own["template"], role=own["role"] or "", after=parse_after(own["after"]))
        for section, own in zip(sections, of_each, strict=True)
    )
    check_roles(apps)
    if settings["skip-unreachable"] and any(app.role for app in apps):
        hint = "leave one out: a role cannot do without its ranks"
        raise UsageError("option-conflict", "--skip-unreachable and --role cannot be used together", hint=hint)
    if part is not None and any(app.role for app in apps):
        hint = "run mpilaunch once with --host or --hostfile, without --node-rank"
        raise UsageError("option-conflict", "--node-rank and --role cannot be used together", hint=hint)
    last = (settings["master-port"] or 0) + PORTS * (len({app.role for app in apps}) - 1)
    if last > MOST_PORT:
        hint = f"each role has {PORTS} ports of its own, above those of the role before it"
        raise UsageError("option-value", f"--master-port: the last role would have port {last:,}", hint=hint)
    return apps


def placement_options(settings: Settings) -> PlacementOptions:
    return PlacementOptions(
        npernode=None if isinstance(settings["npernode"], str) else settings["npernode"],
        bind_to=settings["bind-to"] if settings.layer("bind-to") else None,
        cpu_set_source=settings.source("cpu-set"),
        **settings.fields("np", "npersocket", "map-by", "rank-by", "rankfile", "oversubscribe", "nolocal"),
        **settings.fields("cpu-set", "use-hwthread-cpus", "cpus-per-rank"),
    )


def _part(settings: Settings) -> tuple[Part | None, Settings]:
    """Return this machine's part of a job that the user starts on each machine, None for a whole job; and its settings."""
    rank, nnodes = settings["node-rank"], settings["nnodes"] or ""
    if rank is None:
        return None, settings
    conflict = partial(UsageError, "option-conflict")
    if not is_whole_number(nnodes, 7) or rank >= int(nnodes):
        hint = "--nnodes N is the number of machines, and R a number from 0 to N-1"
        raise conflict(f"--node-rank {rank} needs --nnodes N with N above {rank}", hint=hint)
    if named := [name for name in ("host", "hostfile", "spares", "host-discovery-script") if settings.layer(name)]:
        message = f"--node-rank {rank} starts this machine's ranks only, but {settings.source(named[0])} is set too"
        raise conflict(message, hint="run mpilaunch once, without --node-rank: it starts the ranks on all hosts")
    if missing := [f"--{name}" for name in ("master-addr", "master-port") if settings[name] is None]:
        hint = "an address and a port of the machine with --node-rank 0, the same in the command of each machine"
        raise conflict(f"--node-rank {rank} needs {' and '.join(missing)}", hint=hint)
    if settings["mpi"] not in ("auto", "none"):
        hint = "run mpilaunch once with --host or --hostfile: then MPI programs find each other"
        raise conflict(f"--node-rank {rank} and --mpi {settings['mpi']} cannot be used together", hint=hint)
    profiles = settings["profile"] or ()
    if need_endpoints(profiles) or need_rendezvous(profiles):
        message = f"--node-rank {rank} and --profile {','.join(profiles)} cannot be used together"
        raise conflict(message, hint="run mpilaunch once with --host or --hostfile: then it knows where each rank is")
    of_part: dict[str, Value] = {"host": ("localhost",), "nnodes": None, "mpi": "none"}
    changed = {name: Setting(value, "--node-rank") for name, value in of_part.items()}
    return Part(rank, int(nnodes)), Settings({**settings.by_name, **changed})


def _local_ranks(settings: Settings, name: str) -> frozenset[int] | None:
    text = settings[name]
    return None if text is None else frozenset(parse_numbers(Span.of(text, settings.source(name))))


def _threads(settings: Settings) -> str:
    """Return the OpenMP threads of each rank: its CPUs where the user gives their number, else as the launcher does it."""
    cpus = cpus_of(settings["map-by"]) or (settings["cpus-per-rank"] if settings.layer("cpus-per-rank") else None)
    as_torchrun = not settings["bare"] and settings["dialect"] in {"auto", *dialects.SEPARATE} - dialects.NO_THREADS
    return str(cpus or ("auto" if as_torchrun else "none"))


def _check_conflicts(settings: Settings) -> None:
    """Refuse options that contradict each other, or need another one.

    Output that is printed once for several ranks, at the end, has no time before each line.
    """
    if settings["bare"] and settings["mpi"] not in ("auto", "none"):
        raise UsageError("option-conflict", f"--bare and --mpi {settings['mpi']} cannot be used together", hint="leave one out")
    for name in ("output-file", "error-file"):
        if settings[f"{name}-ranks"] is not None and settings[name] is None:
            raise UsageError("option-conflict", f"--{name}-ranks needs --{name}", hint=f"add --{name} FILE, or leave it out")
    timed = "--timestamp-output" if settings["timestamp-output"] else ""
    if any(field == "time" for field, _ in parse_tag(settings["tag"] or "").pieces):
        timed = timed or "--tag with {time}"
    if settings["fold"] and timed:
        message = f"--fold and {timed} cannot be used together: equal lines of several ranks have no common time"
        raise UsageError("option-conflict", message, hint="leave one out; --output-filename DIR keeps each rank's output apart")


def _restarts(settings: Settings, nodes: Allocation, mapping: MappingPolicy) -> RestartPolicy:
    if not any(settings.layer(option.key) for option in OPTIONS if option.group == RESTARTS):
        return RestartPolicy()
    from mpilaunch.job.restarts import restart_policy  # most jobs do not need it

    return restart_policy(settings, nodes, mapping)


def _share(number: int, section: Section, policy: MappingPolicy, slots: dict[int, int] | None) -> Share:
    name = section.program[0]
    if policy.ranks is None and policy.per_node is None:
        if slots is None:
            message = f"program {number} ({name}): in a job of several programs, each needs a number of ranks"
            hint = "add -np to each program, or '--' before a program that has ':' among its arguments"
            raise UsageError("rank-count", message, hint=hint)
        policy = policy._replace(ranks=sum(slots.values()))
    return Share(name, policy, slots)


def _stdin(settings: Settings, part: Part | None) -> str:
    """Return which rank reads stdin, as in `JobSpec.stdin`."""
    target: str = settings["stdin"]
    if target == "auto":
        if os.isatty(0):
            return "none"  # a background job would stop at its first read of the terminal
        return "0" if part is None else "first"
    if target in ("all", "none"):
        return target
    if not is_whole_number(target, 9):
        guess = did_you_mean(target, ("auto", "all", "none"))
        raise UsageError("stdin", f"--stdin: '{target}' is not a rank, all or none{guess}")
    return str(int(target))


# Environment, output and agents


def _facts(job: JobSpec) -> Callable[[int | None, str], Mapping[str, int]]:
    """Return a function of a program, None for all, and a variable's name: its values, each with the first of the ranks."""

    @cache
    def variables() -> dict[int, dict[str, str]]:
        from mpilaunch.job.preparation.before_launch import variables_before_launch

        return variables_before_launch(job)

    def facts(app: int | None, name: str) -> Mapping[str, int]:
        ranks = [place.rank for place in job.global_map.placements if app in (None, place.app)]
        known = all(name in variables()[rank] for rank in ranks)
        return {variables()[rank][name]: rank for rank in reversed(ranks)} if known else {}

    return facts


def _environments(
    settings: Settings,
    sections: Sequence[Section],
    of_each: Sequence[Settings],
    environ: Mapping[str, str],
    job: JobSpec,
) -> tuple[dict[str, str], tuple[App, ...]]:
    """Return the variables of all ranks, and the programs with those of their ranks."""
    facts = _facts(job)
    # If any program has its own --forward, the variables to forward are chosen for each program.
    apart = any("forward" in section.settings for section in sections)
    exports = [*_parameters(settings["mca"], settings.source("mca")), *settings["export"]]
    files = _env_files(settings["env-file"], named=settings.layer("env-file") == Layer.COMMAND_LINE)
    forward = "none" if apart else settings["forward"]
    forwarded = forwarded_environment(environ, exports, files, forward=forward, facts=partial(facts, None))
    apps = []
    for number, (section, own) in enumerate(zip(sections, of_each, strict=True)):
        usual = forwarded_environment(environ, [], forward=own["forward"]) if apart else {}
        files = _env_files(own_values(section, "env-file"), named=True)
        of_app = partial(facts, number)
        named = forwarded_environment(environ, own_values(section, "export"), files, forward="none", facts=of_app)
        variables = {**{name: value for name, value in usual.items() if name not in forwarded}, **named}
        app = job.apps[number]._replace(
            environment=variables,
            wdir=own["wdir"] if "wdir" in section.settings else None,
            edits=environment_edits(own["unset-env"], own["prepend-env"], own["append-env"]),
        )
        if app.template:
            app = app._replace(variables=variable_templates([*settings["export"], *own_values(section, "export")]))
        apps.append(app)
    return forwarded, tuple(apps)


def _env_files(paths: Sequence[str], *, named: bool) -> list[tuple[str, str]]:
    return [(path, read_trusted(path, "env file", named=named)) for path in paths]


def _parameters(items: Sequence[str], source: str) -> list[str]:
    """Return the MCA parameters of a config file or of the environment as exports."""
    if items:
        from mpilaunch.cli.dialects.mpi import mca

        for item in items:
            if mca.acts(item.partition("=")[0]):
                message = f"{source}: mca parameter '{item}' configures mpirun, and is supported only on the command line"
                hint = "use an option of mpilaunch instead, see docs/dialect-options.md"
                raise UsageError("mca-parameter", message, hint=hint)
    return [f"OMPI_MCA_{item}" for item in items]


def _current_directory(environ: Mapping[str, str]) -> str:
    """Return this process's directory; of one that was removed its former path, if that is known, or a text that is none."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return environ.get("PWD") or "the current directory"


def _python_of_head(environ: Mapping[str, str]) -> str | None:
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    return next((path for folder in folders if os.access(path := os.path.join(folder, "python3"), os.X_OK)), None)


def _directory(text: str | None) -> tuple[str | None, bool | None]:
    """Return the directory of --output-filename, and whether its output is also printed (mpirun's DIR:copy, DIR:nocopy)."""
    path, colon, modifiers = (text or "").partition(":")
    words = set(modifiers.lower().replace(":", ",").split(","))
    if not colon or words - {"nocopy", "copy", "nojobid", "raw"}:
        return text, None
    return path, True if "copy" in words else False if "nocopy" in words else None


def _file_template(settings: Settings, name: str) -> str | None:
    """Return the template of --output-file or --error-file; raises UsageError for a field that file names cannot have."""
    text: str | None = settings[name]
    if text is not None and any(field in ("time", "stream") for field, _ in parse_tag(text, f"--{name}").pieces):
        message = f"--{name}: '{text}': a file name cannot contain {{time}} or {{stream}}"
        raise UsageError("tag-format", message, hint="use {rank}, {local_rank}, {node_rank}, {host}, {job}, {run} or {restart}")
    return text


def _checkpoints(settings: Settings) -> CheckpointPolicy | None:
    prefix, interval = settings["checkpoint-prefix"], settings["checkpoint-interval"]
    if prefix is None and interval is not None:
        hint = "add --checkpoint-prefix DIR, a directory that all nodes share"
        raise UsageError("option-conflict", "--checkpoint-interval needs --checkpoint-prefix", hint=hint)
    if prefix is None:
        return None
    from mpilaunch.head import safe_files  # few launches have checkpoints, and this one imports the event loop
    from mpilaunch.head.checkpoints import find_newest_set

    prefix = os.path.abspath(prefix)
    try:
        restart = find_newest_set(prefix)
    except OSError as error:
        message = f"--checkpoint-prefix {prefix}: {reason_of(error)}"
        raise UsageError("checkpoint-prefix", message, hint=safe_files.hint_of(error)) from error
    return CheckpointPolicy(prefix, restart, interval, settings["checkpoint-signal"])


def _ssh_options(settings: Settings) -> tuple[str, ...]:
    options: tuple[str, ...] = settings["ssh-option"]
    for option in options:
        if not re.match("[A-Za-z][A-Za-z0-9]*=", option):
            hint = "write --ssh-option ProxyJump=login, for example; see ssh_config(5)"
            raise UsageError("ssh-option", f"--ssh-option: '{option}' is not NAME=VALUE", hint=hint)
    return options
