"""Ask every node of the allocation for its topology and devices before a launch, and map the ranks by it.

Only policies whose number of ranks per node depends on them need this (`MappingPolicy.needs_topology`, -N gpu). The daemons
that answer run no rank and end before the launch begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpilaunch.errors import LaunchError
from mpilaunch.head.nodes.agents import Agents
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.observe import Observer
from mpilaunch.head.os_limits import raise_file_limit
from mpilaunch.head.tasks import run
from mpilaunch.head.threads import use_daemon_threads
from mpilaunch.hosts.allocation import CORES, Node, Slot
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.spec import JobSpec, settle_ranks
from mpilaunch.placement.program_shares import map_apps
from mpilaunch.placement.topology import objects_of


def map_by_topology(job: JobSpec, observer: Observer) -> JobSpec:
    """Return the job with its pending map made; raises LaunchError when a node does not answer or the ranks do not fit."""
    raise_file_limit(job, _with_slots(job))
    facts = run(_ask(job, observer))
    if job.slots_by is not None:
        by = _with_cores if job.slots_by == CORES else _with_devices
        nodes = tuple(by(node, facts[node.index], job) if node.index in facts else node for node in job.allocation.nodes)
        allocation = job.allocation._replace(nodes=nodes, elastic_slots=False)
        restarts = job.restarts if job.restarts.pool is None else job.restarts._replace(pool=allocation)
        job = job._replace(allocation=allocation, restarts=restarts, slots_by=None)
    job_map = map_apps(job.allocation, job.pending, {index: node.cpus for index, node in facts.items()})
    return settle_ranks(job._replace(job_map=job_map, pending=()))


def _with_cores(node: Node, facts: NodeFacts, job: JobSpec) -> Node:
    """Return a node with a slot for each core, or hardware thread, that it has told, if it has them by these."""
    kind = "hwthread" if job.cpu.hwthreads else "core"
    return node._replace(slots=(Slot(),) * len(objects_of(node.name, facts.cpus, kind))) if node.by_cores else node


def _with_devices(node: Node, facts: NodeFacts, job: JobSpec) -> Node:
    """Return a node with a slot for each GPU, or CPU ("cpu"); without GPUs, one for each CPU ("auto") or one ("gpu-or-one")."""
    cpus, kind = len(facts.cpus), job.slots_by or ""
    count = cpus if kind == "cpu" else len(facts.gpus) or {"gpu": 0, "auto": cpus, "gpu-or-one": 1}[kind]
    if not count:
        hint = "use -N N for a number, or -N auto, which counts the CPUs of a node without GPUs"
        raise LaunchError("gpu-count", f"{node.name} reports no GPU, so -N gpu gives it no rank", hint=hint)
    return node._replace(slots=(Slot(),) * count)


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
