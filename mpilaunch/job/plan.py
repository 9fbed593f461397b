"""The plan of --dry-run and the map of ranks, as text or JSON.

Pure: a JobSpec in, text or data out. An incompatible change of the JSON changes `SCHEMA`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from mpilaunch.hosts.allocation import CORES
from mpilaunch.hosts.nodeset import fold_numbers
from mpilaunch.job.environment.templates import programs_before_launch
from mpilaunch.job.output.masking import mask_argv, mask_command, mask_pair, mask_variables
from mpilaunch.job.settings import Setting, Settings, Value
from mpilaunch.job.spec import JobSpec
from mpilaunch.text import aligned, plural

SCHEMA = "mpilaunch.plan/1"
_NODE_MEMBERS = ("index", "name", "origin", "agent", "user", "port", "namespace", "container", "max_slots")


def plan_as_json(job: JobSpec, settings: Settings | None = None) -> dict[str, Any]:
    """Return the plan as data for json.dumps; `settings` adds every option with its provenance."""
    places_of = job.global_map.by_node()
    filled = _filled(job)
    plan = {
        "schema": SCHEMA,
        **({} if job.part is None else {"part": job.part._asdict()}),
        "apps": [
            {
                "program": _masked(job, app.program),
                "wdir": app.wdir,
                "environment": sorted(app.environment),
                "edits": [[verb, name, _value(job, name, value), mark] for verb, name, value, mark in app.edits],
                **({"role": app.role, "after": [list(condition) for condition in app.after]} if app.role or app.after else {}),
            }
            for app in job.apps
        ],
        "source": job.allocation.source,
        "agent_source": job.allocation.agent_source or None,
        "nodes": [
            {
                **{name: getattr(node, name) for name in _NODE_MEMBERS},
                "agent": _agent(job, node.agent),
                "slots": [slot._asdict() for slot in node.slots],
                "ranks": [place.rank for place in places_of.get(node.index, ())],
            }
            for node in job.allocation.nodes
        ],
        "pending": bool(job.pending),
        "ranks": [
            {**place._asdict(), **({"program": _masked(job, filled[place.rank])} if filled else {})}
            for place in job.global_map.placements
        ],
        "gpus": job.gpu._asdict(),
        "cpus": job.cpu._asdict(),
        "environment": sorted(job.environment),
    }
    if settings is not None:
        plan["options"] = {
            name: {"value": _without_secrets(setting.value, show=job.show_secrets), "provenance": setting.source}
            for name, setting in settings.by_name.items()
        }
    return plan


def plan_as_text(job: JobSpec) -> str:
    """Return the plan as text: the map, the programs and the names of the forwarded variables."""
    parts = [map_as_text(job)]
    filled = _filled(job)
    for number, app in enumerate(job.apps):
        texts: dict[tuple[str, ...], list[int]] = {} if filled else {app.program: []}
        for place in job.global_map.placements:
            if place.app == number:
                texts.setdefault(tuple(filled.get(place.rank, app.program)), []).append(place.rank)
        role = f", role {app.role}" * bool(app.role) + "".join(f", after {name}:{port}" for name, port in app.after)
        for words, ranks in texts.items():
            of_ranks = f" of ranks {fold_numbers(ranks)}" if len(job.apps) > 1 or len(texts) > 1 else ""
            parts.append(f"program{of_ranks}{role}: {shlex.join(_masked(job, words))}")
    if job.environment:
        parts.append(f"forwarded: {', '.join(sorted(job.environment))}")
    return "\n".join(parts)


def outline(job: JobSpec) -> dict[str, Any]:
    """Return what a job is in short, for its user to find it (docs/jobs.md)."""
    return {
        "id": job.run_id,
        "name": job.name or "",
        "program": list(job.apps[0].program),
        "ranks": len(job.job_map.placements),
        "nodes": [job.allocation.nodes[index].name for index in job.job_map.nodes],
    }


def map_as_text(job: JobSpec) -> str:
    """Return the nodes with their ranks, and the slots that name GPUs or CPUs."""
    if job.pending:
        rule = f"the map depends on the topology of the nodes: {_mapping_rule(job)}"
        hint = "--topology 'pack:2 core:8 pu:2' shows it for machines of that kind"
        return "\n".join([rule, hint, "", allocation_as_text(job)])
    places_of = job.global_map.by_node()
    size, used = len(job.job_map.placements), len(job.job_map.nodes)
    summary = f"{plural(size, 'rank')} on {plural(used, 'node')}, hosts from {job.allocation.source}"
    lines = [summary + (f", agent from {job.allocation.agent_source}" if job.allocation.agent_source else ""), ""]
    pool = (job.restarts.pool or job.allocation).nodes
    nodes = []
    for node in job.allocation.nodes:
        # An idle node has slots only in the pool.
        slots = len(pool[node.index].slots)
        ranks = fold_numbers(place.rank for place in places_of.get(node.index, ()))
        ranks = ranks or ("idle" if slots and not node.slots else "none")
        nodes.append((str(job.first_node_rank + node.index), node.name, _agent(job, node.agent), str(slots), ranks))
    lines += aligned(("node", "host", "agent", "slots", "ranks"), nodes)
    rows = [
        (str(place.rank), job.allocation.nodes[place.node].name, str(place.slot), *_devices(job, place.node, place.slot))
        for place in job.global_map.placements
    ]
    if any(gpus or cpus for *_, gpus, cpus in rows):
        lines += ["", *aligned(("rank", "host", "slot", "GPUs", "CPUs"), rows)]
    return "\n".join([*lines, ""])


def allocation_as_text(job: JobSpec) -> str:
    """Return the nodes of the allocation, and their slots."""
    nodes = [
        (str(node.index), node.name, _agent(job, node.agent), str(len(node.slots)), str(node.max_slots or "-"), node.origin)
        for node in job.allocation.nodes
    ]
    count = plural(job.allocation.slot_count, "slot")
    lines = [f"{count} on {plural(len(nodes), 'node')}, hosts from {job.allocation.source}", ""]
    return "\n".join([*lines, *aligned(("node", "host", "agent", "slots", "max_slots", "named in"), nodes), ""])


def _filled(job: JobSpec) -> dict[int, list[str]]:
    """Return the program of each rank, where arguments are templates."""
    return dict(programs_before_launch(job)) if any(app.template for app in job.apps) else {}


def _masked(job: JobSpec, words: Sequence[str]) -> list[str]:
    return list(words) if job.show_secrets else mask_argv(words)


def _value(job: JobSpec, name: str, value: str) -> str:
    return value if job.show_secrets else mask_variables({name: value})[name]


def _agent(job: JobSpec, agent: str) -> str:
    return agent if job.show_secrets else mask_command(agent)


def _without_secrets(value: Value, *, show: bool) -> Value:
    """Return the value of an option with secrets masked."""
    if not show and isinstance(value, tuple):
        return tuple(map(mask_pair, value))
    return mask_command(value) if not show and isinstance(value, str) else value


def settings_as_text(settings: Settings, of_programs: Sequence[Mapping[str, Setting]] = ()) -> str:
    """Return each option's value and source; `of_programs` has the settings of each program."""
    show = bool(settings["show-secrets"])

    def row(name: str, setting: Setting) -> tuple[str, str, str]:
        return name, _value_as_text(_without_secrets(setting.value, show=show)), setting.source

    rows = [row(name, setting) for name, setting in settings.by_name.items()]
    for number, own in enumerate(of_programs, start=1):
        rows += [row(f"{name} of program {number}", setting) for name, setting in own.items()]
    return "\n".join(aligned(("option", "value", "from"), rows))


def _value_as_text(value: Value) -> str:
    if isinstance(value, tuple):
        return shlex.join(value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


_SLOTS_BY = {
    "gpu": "GPU",
    "cpu": "CPU",
    "auto": "GPU, or CPU of a node without GPUs",
    "gpu-or-one": "GPU, and one on a node without GPUs",
}


def _mapping_rule(job: JobSpec) -> str:
    """Describe the part of the map that depends on the topology of the nodes."""
    if job.slots_by == CORES:
        return "a host for which no number of slots is given has one for each of its cores"
    if job.slots_by is not None:
        return "one rank for each " + _SLOTS_BY[job.slots_by]
    policy = next(share.policy for share in job.pending if share.policy.needs_topology)
    rule = "the ranks are numbered round-robin over the objects of all nodes"
    if policy.per_object is not None:
        rule = f"{plural(policy.per_object, 'rank')} on each {policy.map_by}"
    elif policy.span:
        rule = f"the ranks are mapped round-robin onto each {policy.map_by} of all nodes"
    return rule if policy.ranks is None else f"{rule}, {plural(policy.ranks, 'rank')} in all"


def _devices(job: JobSpec, node: int, slot: int) -> tuple[str, str]:
    """Return the GPUs and CPUs of a slot as text: empty if it names none, `none` for no GPU."""
    named = job.allocation.nodes[node].slots[slot]
    gpus = "" if named.gpus is None else ",".join(named.gpus) or "none"
    return gpus, "" if named.cpus is None else fold_numbers(named.cpus)
