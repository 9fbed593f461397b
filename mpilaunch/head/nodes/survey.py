"""Ask every node of the allocation for its topology before a launch, and map the ranks by it.

Only policies whose number of ranks per node depends on the topology need this (`MappingPolicy.needs_topology`). The daemons
that answer run no rank and end before the launch begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpilaunch.head.nodes.agents import Agents
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.observe import Observer
from mpilaunch.head.os_limits import raise_file_limit
from mpilaunch.head.tasks import run
from mpilaunch.head.threads import use_daemon_threads
from mpilaunch.hosts.allocation import Node
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.spec import JobSpec, check_stdin_rank
from mpilaunch.placement.program_shares import map_apps


def map_by_topology(job: JobSpec, observer: Observer) -> JobSpec:
    """Return the job with its pending map made; raises LaunchError when a node does not answer or the ranks do not fit."""
    raise_file_limit(job, _with_slots(job))
    facts = run(_ask(job, observer))
    job_map = map_apps(job.allocation, job.pending, {index: node.cpus for index, node in facts.items()})
    if job.stdin.isdecimal():
        check_stdin_rank(job.stdin, len(job_map.placements))
    return job._replace(job_map=job_map, pending=())


async def _ask(job: JobSpec, observer: Observer) -> Mapping[int, NodeFacts]:
    nodes = _with_slots(job)
    use_daemon_threads()
    agents = Agents(job, [node.index for node in nodes])
    daemons = Daemons(job, nodes, agents, IgnoreEvents())
    try:
        await daemons.start(job.deadlines.start, observer.progress)
        return {index: link.facts for index, link in daemons.links.items() if link.facts is not None}
    finally:
        await daemons.end()
        await agents.close()


def _with_slots(job: JobSpec) -> list[Node]:
    return [node for node in job.allocation.nodes if node.slots]


class IgnoreEvents:
    """Link events that ignore everything: the daemons are asked for their facts only."""

    def gone(self, link: NodeLink, reason: str) -> None:
        """Do nothing; the start itself reports a node that fails."""

    def _ignore(self, *values: Any) -> None:
        pass

    message = data = end_of_stream = credit = _ignore
