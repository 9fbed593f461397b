"""What a job would do, described before it starts: the plan of --dry-run, and the map.

Pure: a JobSpec in, text or data out. A change of the JSON that its readers would notice changes `SCHEMA`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpilaunch.hosts.nodeset import fold_numbers
from mpilaunch.job.masking import mask_argv, mask_command, mask_pair, mask_variables
from mpilaunch.job.settings import Setting, Settings, Value
from mpilaunch.job.spec import App, JobSpec
from mpilaunch.text import plural

SCHEMA = "mpilaunch.plan/1"


def plan_as_json(job: JobSpec, settings: Settings | None = None) -> dict[str, Any]:
    """Return the plan as data for json.dumps; `settings` adds every option with its provenance."""
    ranks_of = _ranks_of_nodes(job)
    plan = {
        "schema": SCHEMA,
        "apps": [
            {
                "program": _program(job, app),
                "wdir": app.wdir,
                "environment": sorted(app.environment),
                "edits": _edits(job, app),
            }
            for app in job.apps
        ],
        "source": job.allocation.source,
        "agent_source": job.allocation.agent_source or None,
        "nodes": [
            {
                "index": node.index,
                "name": node.name,
                "origin": node.origin,
                "agent": _agent(job, node.agent),
                "user": node.user,
                "port": node.port,
                "namespace": node.namespace,
                "container": node.container,
                "max_slots": node.max_slots,
                "slots": [slot._asdict() for slot in node.slots],
                "ranks": ranks_of[node.index],
            }
            for node in job.allocation.nodes
        ],
        "pending": bool(job.pending),
        "ranks": [placement._asdict() for placement in job.job_map.placements],
        "gpus": job.gpu._asdict(),
        "cpus": job.cpu._asdict(),
        "environment": sorted(job.environment),
    }
    if settings is not None:
        plan["options"] = {
            name: {"value": _without_secrets(setting, show=job.show_secrets), "provenance": setting.source}
            for name, setting in settings.by_name.items()
        }
    return plan


def plan_as_text(job: JobSpec) -> str:
    """Return the plan for people: the nodes with their ranks, the slots that name GPUs or CPUs, what is forwarded."""
    parts = [map_as_text(job)]
    for number, app in enumerate(job.apps):
        ranks = fold_numbers(place.rank for place in job.job_map.placements if place.app == number)
        whose = f" of ranks {ranks}" if len(job.apps) > 1 else ""
        parts.append(f"program{whose}: {shlex.join(_program(job, app))}")
    if job.environment:
        parts.append(f"forwarded: {', '.join(sorted(job.environment))}")
    return "\n".join(parts)


def map_as_text(job: JobSpec) -> str:
    """Return which node runs which ranks."""
    if job.pending:
        return "\n".join([f"the map depends on what the nodes are made of: {_asked(job)}", "", allocation_as_text(job)])
    ranks_of = _ranks_of_nodes(job)
    size, used = len(job.job_map.placements), len(job.job_map.nodes)
    told = f"{plural(size, 'rank')} on {plural(used, 'node')}, hosts from {job.allocation.source}"
    lines = [told + (f", agent from {job.allocation.agent_source}" if job.allocation.agent_source else ""), ""]
    pool = (job.restarts.pool or job.allocation).nodes
    nodes = []
    for node in job.allocation.nodes:
        # A node that is kept idle has its slots in the pool only.
        slots = len(pool[node.index].slots)
        ranks = fold_numbers(ranks_of[node.index]) or ("idle" if slots and not node.slots else "none")
        nodes.append((str(node.index), node.name, _agent(job, node.agent), str(slots), ranks))
    lines += _table(("node", "host", "agent", "slots", "ranks"), nodes)
    rows = [
        (str(place.rank), job.allocation.nodes[place.node].name, str(place.slot), *_devices(job, place.node, place.slot))
        for place in job.job_map.placements
    ]
    if any(gpus or cpus for *_, gpus, cpus in rows):
        lines += ["", *_table(("rank", "host", "slot", "GPUs", "CPUs"), rows)]
    return "\n".join([*lines, ""])


def allocation_as_text(job: JobSpec) -> str:
    """Return the nodes that the job may use, and their slots."""
    nodes = [
        (str(node.index), node.name, _agent(job, node.agent), str(len(node.slots)), str(node.max_slots or "-"), node.origin)
        for node in job.allocation.nodes
    ]
    count = plural(sum(len(node.slots) for node in job.allocation.nodes), "slot")
    lines = [f"{count} on {plural(len(nodes), 'node')}, hosts from {job.allocation.source}", ""]
    return "\n".join([*lines, *_table(("node", "host", "agent", "slots", "max_slots", "named in"), nodes), ""])




def _program(job: JobSpec, app: App) -> list[str]:
    return list(app.program) if job.show_secrets else mask_argv(app.program)


def _edits(job: JobSpec, app: App) -> list[list[str]]:
    """Return the edits of an app's environment as lists [verb, name, value, separator]."""
    hidden = not job.show_secrets
    return [
        [verb, name, mask_variables({name: value})[name] if hidden else value, separator]
        for verb, name, value, separator in app.edits
    ]


def _agent(job: JobSpec, agent: str) -> str:
    return agent if job.show_secrets else mask_command(agent)


def _without_secrets(setting: Setting, *, show: bool) -> Value:
    """Return the value of an option without the secrets in it: those of `NAME=VALUE` items, of templates, of any text."""
    value = setting.value
    if show:
        return value
    if isinstance(value, tuple):
        return tuple(mask_pair(item) for item in value)
    return mask_command(value) if isinstance(value, str) else value


def settings_as_text(settings: Settings, of_programs: Sequence[Mapping[str, Setting]] = ()) -> str:
    """Return each option's value and its source; `of_programs` are the settings of each of several programs."""
    show = bool(settings["show-secrets"])

    def row(name: str, setting: Setting) -> tuple[str, str, str]:
        return name, _shown(_without_secrets(setting, show=show)), setting.source

    rows = [row(name, setting) for name, setting in settings.by_name.items()]
    for number, own in enumerate(of_programs, start=1):
        rows += [row(f"{name} of program {number}", setting) for name, setting in own.items()]
    return "\n".join(_table(("option", "value", "from"), rows))


def _shown(value: Value) -> str:
    if isinstance(value, tuple):
        return shlex.join(value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def _asked(job: JobSpec) -> str:
    """Say in words what the job asks for that only the nodes can tell."""
    policy = next(share.policy for share in job.pending if share.policy.needs_topology)
    asked = "the ranks are numbered round the objects of all nodes"
    if policy.per_object is not None:
        asked = f"{plural(policy.per_object, 'rank')} on each {policy.map_by}"
    elif policy.span:
        asked = f"the ranks are dealt to each {policy.map_by} of all nodes in turn"
    return asked if policy.ranks is None else f"{asked}, {plural(policy.ranks, 'rank')} in all"


def _ranks_of_nodes(job: JobSpec) -> dict[int, list[int]]:
    ranks_of: dict[int, list[int]] = {node.index: [] for node in job.allocation.nodes}
    for place in job.job_map.placements:
        ranks_of[place.node].append(place.rank)
    return ranks_of


def _devices(job: JobSpec, node: int, slot: int) -> tuple[str, str]:
    """Return the GPUs and CPUs that the slot names, as text; empty when it names none, `none` when it has no GPU."""
    named = job.allocation.nodes[node].slots[slot]
    gpus = "" if named.gpus is None else ",".join(named.gpus) or "none"
    return gpus, "" if named.cpus is None else fold_numbers(named.cpus)

def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return lines with columns of equal width and no blanks at their ends."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
