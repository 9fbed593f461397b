"""What a job would do, told before it starts: the plan of --dry-run, the map, the environment of a rank.

Pure: a JobSpec in, text or data out. A change of the JSON that its readers would notice changes `SCHEMA`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mpilaunch import environ
from mpilaunch.jobspec import JobSpec
from mpilaunch.nodeset import fold_numbers
from mpilaunch.options import Settings, Value

SCHEMA = "mpilaunch.plan/1"
AT_LAUNCH = "<chosen at launch>"
MASKED = "<masked>"

_SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|KEY)S?(_|$)", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/@\s]*:[^/@\s]+@")


def plan_as_json(job: JobSpec, settings: Settings | None = None) -> dict[str, Any]:
    """Return the plan as data for json.dumps; `settings` adds every option with its provenance."""
    ranks_of = _ranks_of_nodes(job)
    plan = {
        "schema": SCHEMA,
        "program": list(job.program),
        "source": job.allocation.source,
        "nodes": [
            {
                "index": node.index,
                "name": node.name,
                "origin": node.origin,
                "agent": node.agent,
                "user": node.user,
                "port": node.port,
                "max_slots": node.max_slots,
                "slots": [asdict(slot) for slot in node.slots],
                "ranks": ranks_of[node.index],
            }
            for node in job.allocation.nodes
        ],
        "ranks": [asdict(placement) for placement in job.job_map.placements],
        "gpus": asdict(job.gpu),
        "cpus": asdict(job.cpu),
        "environment": sorted(job.environment),
    }
    if settings is not None:
        plan["options"] = {
            name: {"value": _without_secrets(setting.value), "provenance": setting.provenance}
            for name, setting in settings.by_name.items()
        }
    return plan


def plan_as_text(job: JobSpec) -> str:
    """Return the plan for people: the nodes with their ranks, the slots that name GPUs or CPUs, what is forwarded."""
    parts = [map_as_text(job), f"program: {shlex.join(job.program)}"]
    if job.environment:
        parts.append(f"forwarded: {', '.join(sorted(job.environment))}")
    return "\n".join(parts)


def map_as_text(job: JobSpec) -> str:
    """Return which node runs which ranks."""
    ranks_of = _ranks_of_nodes(job)
    size, used = len(job.job_map.placements), len(job.job_map.nodes)
    lines = [f"{_count(size, 'rank')} on {_count(used, 'node')}, hosts from {job.allocation.source}", ""]
    nodes = [
        (str(node.index), node.name, node.agent, str(len(node.slots)), fold_numbers(ranks_of[node.index]) or "none")
        for node in job.allocation.nodes
    ]
    lines += _table(("node", "host", "agent", "slots", "ranks"), nodes)
    rows = [
        (str(place.rank), job.allocation.nodes[place.node].name, str(place.slot), *_devices(job, place.node, place.slot))
        for place in job.job_map.placements
    ]
    if any(gpus or cpus for *_, gpus, cpus in rows):
        lines += ["", *_table(("rank", "host", "slot", "GPUs", "CPUs"), rows)]
    return "\n".join([*lines, ""])


def environment_of_rank(job: JobSpec, rank: int) -> dict[str, str]:
    """Return what mpilaunch gives a rank, in name order; the node's own variables and what binding adds are not known here."""
    place = job.job_map.placements[rank]
    local_size = sum(other.node == place.node for other in job.job_map.placements)
    cross_rank, cross_size = environ.cross_places(job.job_map.placements)[rank]
    variables = environ.defaults_if_unset(local_size)
    variables |= environ.job_environment(
        job_id=job.job_id,
        size=len(job.job_map.placements),
        node_count=len(job.job_map.nodes),
        universe_size=sum(len(node.slots) for node in job.allocation.nodes),
        master_addr=job.master_addr or AT_LAUNCH,
        master_port=job.master_port or 0,
    )
    for name in ("MPILAUNCH_JOB_ID", "TORCHELASTIC_RUN_ID"):
        variables[name] = AT_LAUNCH
    if job.master_port is None:
        variables["MASTER_PORT"] = AT_LAUNCH
    variables |= job.environment
    variables |= environ.node_environment(node_rank=job.job_map.nodes.index(place.node), local_size=local_size)
    variables |= environ.rank_environment(
        rank=rank, local_rank=place.local_rank, cross_rank=cross_rank, cross_size=cross_size
    )
    if job.mpi != "none":
        variables |= environ.pmi_environment(
            rank=rank, size=len(job.job_map.placements), local_rank=place.local_rank, local_size=local_size
        )
    return dict(sorted(variables.items()))


def mask_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the values hidden whose name, or form of a URL with a password, tells of a secret."""
    return {
        name: MASKED if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value) else value
        for name, value in variables.items()
    }


def _without_secrets(value: Value) -> Value:
    """Return the value of an option; of `NAME=VALUE` items only the name where the value is a secret."""
    if not isinstance(value, tuple):
        return value
    pairs = [item.partition("=") for item in value]
    return tuple(name + equals + (mask_secrets({name: text})[name] if equals else "") for name, equals, text in pairs)


def settings_as_text(settings: Settings) -> str:
    """Return each option's value and who said it."""
    rows = [(name, _shown(_without_secrets(setting.value)), setting.provenance) for name, setting in settings.by_name.items()]
    return "\n".join(_table(("option", "value", "said by"), rows))


def _shown(value: Value) -> str:
    if isinstance(value, tuple):
        return shlex.join(value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return lines with columns of equal width and no blanks at their ends."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
