"""The report of `--report` as JSON, documented in docs/report.md: its data, and writing its file.

It is written once, at the end, to a new file that replaces an old one, so a reader never sees half a report. A pipe or a device
such as /dev/null is written to directly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import mpilaunch
from mpilaunch.errors import LaunchError
from mpilaunch.head import safe_files
from mpilaunch.head.observe import Timeline
from mpilaunch.head.ranks import Ranks
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.hosts.nodeset import fold
from mpilaunch.job.plan import plan_as_json
from mpilaunch.job.preparation.reach import network_of
from mpilaunch.job.restarts import Layout
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState
from mpilaunch.job.verdict import Verdict
from mpilaunch.placement.gpu_binding import RankBinding
from mpilaunch.placement.network import AUTO, Network

SCHEMA = "mpilaunch.report/1"


def write_report(path: str, data: Mapping[str, Any]) -> None:
    """Write a report to a file; raises LaunchError."""
    try:
        safe_files.write_file(path, (json.dumps(data, indent=2) + "\n").encode())
    except OSError as error:
        raise LaunchError("report-file", f"--report {path}: {error.strerror}", hint=safe_files.hint_of(error)) from error


def report(
    job: JobSpec,
    facts: Mapping[int, NodeFacts],
    ranks: Ranks,
    state: JobState,
    timeline: Timeline,
    bytes_of: Callable[[int], tuple[int, int]],
    verdict: Verdict,
) -> dict[str, Any]:
    """Return the report as data; docs/report.md describes every member.

    Args:
        bytes_of: returns how much stdout and stderr of a rank has come.
    """
    return {
        **_head(job),
        "phases": timeline.phases(),
        "verdict": _verdict(verdict),
        **_nodes(job, facts, network_of(job, ranks.worlds[0], facts)),
        "ranks": [_rank(rank, ranks, state, timeline, *bytes_of(rank)) for rank in state.states],
    }


def report_of_error(error: LaunchError, mask: Callable[[str], str], job: JobSpec | None) -> dict[str, Any]:
    """Return the report of a job that did not start, with the same members.

    Args:
        mask: hides the secrets in a text.
        job: None when the error was found before it was built.
    """
    hint = error.hint and mask(error.hint)
    host = fold(error.nodes.values())
    verdict = Verdict(error.exit_code, error.reference, host=host, detail=mask(error.message), hint=hint)
    return {
        **_head(job),
        "phases": {},
        "verdict": {**_verdict(verdict), "context": list(map(mask, error.context))},
        **({"network": None, "nodes": []} if job is None else _nodes(job, {}, None)),
        "ranks": [],
        "attempts": [],
    }


def _head(job: JobSpec | None) -> dict[str, Any]:
    """Return the members that tell what was to be done."""
    plan = None if job is None else plan_as_json(job)
    return {"schema": SCHEMA, "mpilaunch": mpilaunch.__version__, "job_id": job and job.job_id, "plan": plan}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        **_summary(verdict, verdict.detail or ("" if verdict.first is None else verdict.first.description)),
        "context": list(verdict.others),
        "last_lines": [line.decode("utf-8", "replace") for line in verdict.last_lines],
        "hint": verdict.hint,
        "likely_cause": verdict.likely and {
            "rank": verdict.likely.end.rank,
            "host": verdict.likely.host,
            "detail": verdict.likely.end.description,
            "last_lines": [line.decode("utf-8", "replace") for line in verdict.likely.last_lines],
            "hint": verdict.likely.hint,
        },
        "swept": [{"host": host, "pid": pid, "name": name} for host, pid, name in verdict.swept],
    }


def attempt_as_data(job: JobSpec, layout: Layout, verdict: Verdict) -> dict[str, Any]:
    """Return an item of the report's `attempts`."""
    common = _summary(verdict, verdict.headline)
    return {"restart": job.restart, "job_id": job.job_id, "nodes": list(layout.names), **common}


def _summary(verdict: Verdict, detail: str) -> dict[str, Any]:
    """Return the members that the verdict of a job and that of each attempt have in common."""
    return {
        "exit_code": int(verdict.exit_code),
        "cause": verdict.cause,
        "first_rank": None if verdict.first is None else verdict.first.rank,
        "host": verdict.host or None,
        "detail": detail or None,
        "seconds": verdict.seconds,
    }


def _nodes(job: JobSpec, facts: Mapping[int, NodeFacts], network: Network | None) -> dict[str, Any]:
    nodes = []
    for node_rank, index in enumerate(job.job_map.nodes, start=job.first_node_rank):
        link = network.links[index] if network else None
        nodes.append(
            {
                **_node(job, index, node_rank, facts.get(index)),
                "interface": link and link.interface,
                "address": link and link.address,
                "speed": link and link.speed,
            }
        )
    named = job.network if job.network != AUTO else "routed"  # by the user, as an interface
    return {"network": network and (network.name or named), "nodes": nodes}


def _node(job: JobSpec, index: int, node_rank: int, facts: NodeFacts | None) -> dict[str, Any]:
    data: dict[str, Any] = {"index": index, "node_rank": node_rank, "name": job.allocation.nodes[index].name}
    if facts is not None:
        data |= {
            "hostname": facts.hostname,
            "python": facts.python,
            "addresses": list(facts.network.addresses),
            "cpus": len(facts.cpus),
            "gpus": [gpu._asdict() for gpu in facts.gpus],
        }
    return data


def _rank(
    rank: int, ranks: Ranks, state: JobState, timeline: Timeline, stdout_bytes: int, stderr_bytes: int
) -> dict[str, Any]:
    place = ranks.place(rank)
    binding = ranks.bindings.get(rank, RankBinding())
    end = state.ends.get(rank)
    return {
        "rank": rank,
        "node": place.node,
        "cpus": None if binding.cpus is None else list(binding.cpus),
        "gpus": list(binding.gpus),
        "nics": list(binding.nics),
        "started": timeline.wall(timeline.rank_starts.get(rank)),
        "ended": None if end is None else timeline.wall(end.clock),
        "stdout_bytes": stdout_bytes,
        "stderr_bytes": stderr_bytes,
        "exit_code": None if end is None else end.code,
        "signal": None if end is None else end.signal,
        "stopped": end is None or end.stopped,
        "how": end.description if end else "lost with its node" if rank in timeline.rank_starts else "not started",
    }
