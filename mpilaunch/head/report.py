"""The report: what a launch did, as documented JSON (docs/report.md), and the times of its phases.

Written once, at the end, into a new file that takes the old one's place: a reader never sees half a report.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping
from typing import Any

import mpilaunch
from mpilaunch.binding import RankBinding
from mpilaunch.errors import LaunchError
from mpilaunch.facts import NodeFacts
from mpilaunch.jobspec import JobSpec
from mpilaunch.jobstate import JobState, Verdict

VERSION = 1


class Timeline:
    """When what happened, in seconds of the head's monotonic clock, with one look at the wall clock for all of them."""

    def __init__(self) -> None:
        self._wall = time.time() - time.monotonic()
        self._phases: list[tuple[str, float]] = []
        self._rank_starts: dict[int, float] = {}

    def begin(self, phase: str) -> None:
        """A phase begins and the one before it ends; the name "" ends the last."""
        self._phases.append((phase, time.monotonic()))

    def rank_started(self, rank: int, clock: float) -> None:
        """Note the start of a rank."""
        self._rank_starts[rank] = clock

    def seconds(self, phase: str) -> float:
        """Return how long a phase took; 0 when it did not begin."""
        return self.phases().get(phase, 0.0)

    def phases(self) -> dict[str, float]:
        """Return the seconds of each phase that has ended, in order."""
        pairs = zip(self._phases, self._phases[1:], strict=False)
        return {name: round(after - begun, 6) for (name, begun), (_, after) in pairs}

    def started_at(self, rank: int) -> float | None:
        """Return when a rank started, as seconds since 1970; None when it did not."""
        return self.wall(self._rank_starts.get(rank))

    def wall(self, clock: float | None) -> float | None:
        """Map a monotonic time to seconds since 1970."""
        return None if clock is None else round(clock + self._wall, 6)


def write_report(
    job: JobSpec,
    facts: Mapping[int, NodeFacts],
    bindings: Mapping[int, RankBinding],
    state: JobState,
    timeline: Timeline,
    verdict: Verdict,
) -> None:
    """Write the report to `job.report_file`; raises LaunchError when it cannot."""
    assert job.report_file is not None
    text = json.dumps(report(job, facts, bindings, state, timeline, verdict), indent=2) + "\n"
    partial = f"{job.report_file}.{os.getpid()}.part"
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(partial, job.report_file)
    except OSError as error:
        raise LaunchError("report-file", f"--report {job.report_file}: {error.strerror}") from error


def report(
    job: JobSpec,
    facts: Mapping[int, NodeFacts],
    bindings: Mapping[int, RankBinding],
    state: JobState,
    timeline: Timeline,
    verdict: Verdict,
) -> dict[str, Any]:
    """Return the report as data; docs/report.md describes every member."""
    return {
        "report_version": VERSION,
        "mpilaunch": mpilaunch.__version__,
        "job_id": job.job_id,
        "program": list(job.program),
        "allocation": job.allocation.source,
        "phases": timeline.phases(),
        "verdict": {
            "exit_code": int(verdict.exit_code),
            "cause": verdict.cause,
            "first_rank": None if verdict.first is None else verdict.first.rank,
            "host": verdict.host or None,
            "detail": verdict.detail or (None if verdict.first is None else verdict.first.how),
            "last_lines": [line.decode("utf-8", "replace") for line in verdict.last_lines],
            "seconds": verdict.seconds,
            "swept": [{"host": host, "pid": pid, "name": name} for host, pid, name in verdict.swept],
        },
        "nodes": [_node(job, index, facts.get(index)) for index in job.job_map.nodes],
        "ranks": [_rank(job, place.rank, bindings, state, timeline) for place in job.job_map.placements],
    }


def _node(job: JobSpec, index: int, facts: NodeFacts | None) -> dict[str, Any]:
    node = job.allocation.nodes[index]
    found = {} if facts is None else {"hostname": facts.hostname, "python": facts.python, "addresses": list(facts.addresses)}
    gpus = [] if facts is None else [dataclasses.asdict(gpu) for gpu in facts.gpus]
    cpus = None if facts is None else len(facts.cpus)
    return {"node": index, "name": node.name, "agent": node.agent, "slots": len(node.slots), **found, "cpus": cpus, "gpus": gpus}


def _rank(
    job: JobSpec, rank: int, bindings: Mapping[int, RankBinding], state: JobState, timeline: Timeline
) -> dict[str, Any]:
    place = job.job_map.placements[rank]
    binding = bindings.get(rank, RankBinding())
    end = state.ends.get(rank)
    return {
        "rank": rank,
        "node": place.node,
        "local_rank": place.local_rank,
        "slot": place.slot,
        "cpus": None if binding.cpus is None else list(binding.cpus),
        "gpus": list(binding.gpus),
        "started": timeline.started_at(rank),
        "ended": None if end is None else timeline.wall(end.clock),
        "exit_code": None if end is None else end.code,
        "signal": None if end is None else end.signal,
        "how": "lost with its node" if end is None else end.how,
    }
