"""Ask every node of the allocation for its topology and devices before a launch, and map the ranks by it.

Only policies whose number of ranks per node depends on them need this (`MappingPolicy.needs_topology`, -N gpu). The daemons
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
from mpilaunch.job.preparation.pending_map import map_pending
from mpilaunch.job.spec import JobSpec


def map_by_topology(job: JobSpec, observer: Observer) -> JobSpec:
    """Return the job with its pending map made; raises LaunchError when a node does not answer or the ranks do not fit."""
    raise_file_limit(job, _with_slots(job))
    facts = run(_ask(job, observer))
    return map_pending(job, facts)


async def _ask(job: JobSpec, observer: Observer) -> Mapping[int, NodeFacts]:
    nodes = _with_slots(job)
    use_daemon_threads()
    agents = Agents(job, [node.index for node in nodes])
    daemons = Daemons(job, agents)
    daemons.add(nodes, IgnoreEvents())
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

    def crashed(self, error: BaseException) -> None:
        """Let the loop report it."""
        raise error

    message = data = end_of_stream = credit = _ignore
