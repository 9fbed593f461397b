"""Builds the JobSpec of one or more programs: reads its inputs, maps the ranks, then puts each setting in its place."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from mpilaunch.agent import AgentOptions
from mpilaunch.cli import dialects
from mpilaunch.cli.job.environment import forwarded_variables
from mpilaunch.cli.job.inputs import Inputs, read_inputs
from mpilaunch.cli.job.output import output_policy
from mpilaunch.cli.job.ranks import MappedJob, map_job, placement_options
from mpilaunch.defaults import START_IN_POD
from mpilaunch.errors import UsageError
from mpilaunch.hosts.schedulers import BatchJob
from mpilaunch.job import servers
from mpilaunch.job.environment.contracts import need_endpoints, need_rendezvous
from mpilaunch.job.environment.templates import check_templates
from mpilaunch.job.preparation.gpu_masks import check_masks
from mpilaunch.job.roles import MOST_PORT, check_roles, parse_after
from mpilaunch.job.settings import Layer, Section, Setting, Settings, Value, merge_program_settings
from mpilaunch.job.spec import App, CheckpointPolicy, Deadlines, JobSpec, Part, RestartPolicy, settle_ranks
from mpilaunch.job.worlds import PORTS
from mpilaunch.placement.cpu_binding import CpuPolicy
from mpilaunch.placement.gpu_binding import GpuPolicy
from mpilaunch.placement.map_by import cpus_of, placement_policies
from mpilaunch.text import did_you_mean, is_whole_number
from mpilaunch_agents.registry import calling_back

OF_EACH_BY_ITSELF = ("skip-unreachable", "leave-running")
"""Options that --independent implies."""
OF_A_JOB = (
    *("mpi", "pmi-port", "profile", "bare-if-single", "node-rank", "gpus-per-rank", "bind-to", "report-bindings"),
    *("max-restarts", "spares", "checkpoint-prefix", "hang-timeout", "stack-on-failure", "network", "bind-nic", "ready"),
)
"""Options for ranks that know of each other or are placed on CPUs and GPUs, which --independent excludes."""
OF_MAPS = ("npernode", "npersocket", "map-by", "rankmap", "rankfile")
"""Options by which the user says how the processes of a server lie on the nodes."""
OF_HOSTS = ("first-interrupt", "host-failures")
"""Options that need --independent."""


def make_job(settings: Settings, sections: Sequence[Section], environ: Mapping[str, str]) -> JobSpec:
    """Build the job of one or more programs from its settings and those of each program; raises UsageError."""
    part, settings = _part(settings)
    of_each = [Settings(merge_program_settings(settings.by_name, section.settings)) for section in sections]
    policies = placement_policies(placement_options(settings))
    inputs = read_inputs(settings, sections, policies[0], environ)
    one_per_node = False
    if {*servers.NAMES} & {*(settings["profile"] or ())} and not any(map(settings.layer, OF_MAPS)):
        from mpilaunch.job.servers.serving import is_one_per_node  # few jobs are servers

        one_per_node = is_one_per_node(settings["profile"], [section.program for section in sections])
    mapped = map_job(inputs, settings, sections, of_each, policies, part, one_per_node=one_per_node)
    return _spec(os.urandom(8).hex(), inputs, settings, sections, of_each, mapped, part)


def _spec(
    job_id: str,
    inputs: Inputs,
    settings: Settings,
    sections: Sequence[Section],
    of_each: Sequence[Settings],
    mapped: MappedJob,
    part: Part | None,
) -> JobSpec:
    """Return the job of a map; raises UsageError. Pure."""
    independent = settings["independent"]
    if independent and (other := next((name for name in OF_A_JOB if settings.layer(name) == Layer.COMMAND_LINE), None)):
        message = f"--independent and --{other} cannot be used together"
        raise UsageError("option-conflict", message, hint="leave one out: independent commands are no ranks of a job")
    if not independent and (alone := next((name for name in OF_HOSTS if settings.layer(name) == Layer.COMMAND_LINE), None)):
        raise UsageError("option-conflict", f"--{alone} needs --independent", hint="add --independent, or leave it out")
    machine, nodes = inputs.machine, mapped.allocation.nodes
    slot_count = None if mapped.slots_by else mapped.allocation.slot_count
    job = JobSpec(
        job_id=job_id,
        apps=_programs(settings, sections, of_each, part),
        **mapped._asdict(),
        part=part,
        stdin=_stdin(settings, part, terminal=machine.terminal),
        gpu=GpuPolicy(settings["gpus-per-rank"], settings["gpu-bind"], settings["oversubscribe-gpus"], settings["bind-nic"]),
        output=output_policy(settings),
        deadlines=Deadlines(
            mpi_init=settings["mpi-init-timeout"],
            hang=settings["hang-timeout"],
            start=START_IN_POD if machine.in_pod and settings.layer("start-timeout") == 0 else settings["start-timeout"],
            reconnect=settings["reconnect-timeout"],
            **settings.fields("timeout", "grace", "heartbeat", "drain"),
        ),
        patient=machine.in_pod,
        agent=AgentOptions(
            ssh_options=_ssh_options(settings) + (inputs.agent.ssh_options if inputs.agent else ()),
            container=settings["container"] or (inputs.agent.container if inputs.agent else None),
            call_back=calling_back(settings["call-back"], (node.agent for node in nodes), in_pod=machine.in_pod),
            **settings.fields("insecure-host-keys", "namespace", "context", "connectors"),
        ),
        universe_size={"SYSTEM": slot_count, "INFINITE": None}.get(settings["universe-size"], settings["universe-size"]),
        threads=_threads(settings, inputs.batch, mapped),
        checkpoints=_checkpoints(inputs, settings),
        report_file=settings["report"],
        report_bindings=settings["report-bindings"] or ":report" in settings["bind-to"].lower(),
        directory=machine.directory,
        head_python=machine.python,
        **settings.fields("python", "wdir", "master-addr", "master-port", "network", "ready", "fanout", "show-secrets"),
        **settings.fields("name", "stack-on-failure", "bare-if-single", "pmi-port", "pmix-library"),
        **{name.replace("-", "_"): independent or settings[name] for name in OF_EACH_BY_ITSELF},
        continue_on_error=settings["continue-on-error"] if settings.layer("continue-on-error") > Layer.DEFAULT else independent,
        independent=independent,
        first_interrupt=settings["first-interrupt"],
        window=settings["fanout"] if independent and settings.layer("fanout") > Layer.DEFAULT else None,
        mpi="none" if independent else settings["mpi"],
        profiles=settings["profile"] or (),
    )
    if independent:
        gpu, cpu = GpuPolicy(bind="none"), CpuPolicy()
        job = job._replace(restarts=RestartPolicy(), checkpoints=None, profiles=(), gpu=gpu, cpu=cpu)
    if not job.pending:
        job = settle_ranks(job)
    if job.cpu.chosen:  # by the number of the rank
        job = job._replace(cpu=job.cpu._replace(chosen=((),) * job.first_rank + job.cpu.chosen))
    forwarded, apps = forwarded_variables(inputs, settings, sections, of_each, job)
    job = job._replace(environment=forwarded, apps=apps)
    if {*servers.NAMES} & {*job.profiles}:
        from mpilaunch.job.servers.serving import as_server

        job = as_server(job)
    check_templates(job.apps)
    check_masks(job, [f"--{name}" for name in ("gpus-per-rank", "gpu-bind") if settings.layer(name) > Layer.INHERITED])
    return job


def _programs(
    settings: Settings, sections: Sequence[Section], of_each: Sequence[Settings], part: Part | None
) -> tuple[App, ...]:
    """Return the programs without their environment; raises UsageError for roles that cannot start."""
    apps = tuple(
        App(
            tuple(section.program),
            template=own["template"],
            role=own["role"] or "",
            after=parse_after(own["after"]),
            ends_with=own["ends-with"],
        )
        for section, own in zip(sections, of_each, strict=True)
    )
    check_roles(apps)
    alone = next((name for name in ("independent", "skip-unreachable") if settings[name]), None)
    if alone is not None and any(app.role for app in apps):
        hint = "leave one out: a role cannot do without its ranks"
        raise UsageError("option-conflict", f"--{alone} and --role cannot be used together", hint=hint)
    if part is not None and any(app.role for app in apps):
        hint = "run mpilaunch once with --host or --hostfile, without --node-rank"
        raise UsageError("option-conflict", "--node-rank and --role cannot be used together", hint=hint)
    last = (settings["master-port"] or 0) + PORTS * (len({app.role for app in apps}) - 1)
    if last > MOST_PORT:
        hint = f"each role has {PORTS} ports of its own, above those of the role before it"
        raise UsageError("option-value", f"--master-port: the last role would have port {last:,}", hint=hint)
    return apps


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


def _threads(settings: Settings, batch: BatchJob | None, mapped: MappedJob) -> str:
    """Return the OpenMP threads of each rank: its CPUs where the user gives their number, else as the launcher does it.

    The CPUs of a batch job's tasks count where the ranks take their places.
    """
    cpus = cpus_of(settings["map-by"]) or (settings["cpus-per-rank"] if settings.layer("cpus-per-rank") else None)
    as_torchrun = settings["dialect"] in {"auto", *dialects.SEPARATE} - dialects.NO_THREADS
    if cpus is None and as_torchrun and batch is not None and batch.cpus_per_task:
        ranks = Counter(place.node for place in mapped.job_map.placements)
        of_job = (node.name in batch.hosts and ranks[node.index] <= len(node.slots) for node in mapped.allocation.nodes)
        cpus = batch.cpus_per_task if all(of_job) else None
    return str(cpus or ("auto" if as_torchrun else "none"))


def _stdin(settings: Settings, part: Part | None, *, terminal: bool) -> str:
    """Return which rank reads stdin, as in `JobSpec.stdin`."""
    target: str = settings["stdin"]
    if settings["stdin-archive"] and target == "none":
        raise UsageError("option-conflict", "--stdin-archive with --stdin none", hint="leave one out")
    if target == "auto":
        if (terminal or settings["detach"]) and not settings["stdin-archive"]:
            return "none"  # a background job would stop at its first read of the terminal, or take what a script reads
        return "0" if part is None else "first"
    if target in ("all", "none"):
        return target
    if not is_whole_number(target, 9):
        guess = did_you_mean(target, ("auto", "all", "none"))
        raise UsageError("stdin", f"--stdin: '{target}' is not a rank, all or none{guess}")
    return str(int(target))


def _checkpoints(inputs: Inputs, settings: Settings) -> CheckpointPolicy | None:
    prefix, interval = settings["checkpoint-prefix"], settings["checkpoint-interval"]
    if prefix is None and interval is not None:
        hint = "add --checkpoint-prefix DIR, a directory that all nodes share"
        raise UsageError("option-conflict", "--checkpoint-interval needs --checkpoint-prefix", hint=hint)
    if inputs.checkpoints is None:
        return None
    return CheckpointPolicy(*inputs.checkpoints, interval, settings["checkpoint-signal"])


def _ssh_options(settings: Settings) -> tuple[str, ...]:
    options: tuple[str, ...] = settings["ssh-option"]
    for option in options:
        if not re.match("[A-Za-z][A-Za-z0-9]*=", option):
            hint = "write --ssh-option ProxyJump=login, for example; see ssh_config(5)"
            raise UsageError("ssh-option", f"--ssh-option: '{option}' is not NAME=VALUE", hint=hint)
    return options
