"""A short round before a launch: ask every node of the allocation what it is made of, and map the ranks by that.

Only for the few policies whose number of ranks on a node depends on its topology (`MappingPolicy.needs_topology`). The daemons
that answer run nothing and are gone before the launch begins: a job that needs no such round pays nothing for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from mpilaunch.head.limits import raise_file_limit
from mpilaunch.head.nodes.agents import Agents
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.observe.observer import Observer
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.spec import JobSpec, check_stdin_rank
from mpilaunch.placement.program_shares import map_apps


def map_by_topology(job: JobSpec, observer: Observer) -> JobSpec:
    """Return a job with its map, which was pending; raises LaunchError when a node does not answer or the ranks do not fit."""
    facts = asyncio.run(_ask(job, observer))
    job_map = map_apps(job.allocation, job.pending, {index: found.cpus for index, found in facts.items()})
    if job.stdin.isdecimal():
        check_stdin_rank(job.stdin, len(job_map.placements))
    return replace(job, job_map=job_map, pending=())


async def _ask(job: JobSpec, observer: Observer) -> Mapping[int, NodeFacts]:
    nodes = [node for node in job.allocation.nodes if node.slots]
    raise_file_limit(job, nodes)
    agents = Agents(job, [node.index for node in nodes])
    daemons = Daemons(job, nodes, agents, IgnoreEvents())

    def progress(waiting: Collection[str]) -> None:
        observer.progress(len(nodes) - len(waiting), len(nodes), waiting)

    try:
        await daemons.start(job.deadlines.start, progress)
        return {index: link.facts for index, link in daemons.links.items() if link.facts is not None}
    finally:
        await daemons.end()
        await agents.close()


class IgnoreEvents:
    """The `LinkEvents` of daemons that are asked for their facts only: there is nothing else to hear."""

    def message(self, link: NodeLink, message: dict[str, Any]) -> None:
        pass

    def data(self, link: NodeLink, channel: int, data: bytes) -> None:
        pass

    def end(self, link: NodeLink, channel: int) -> None:
        pass

    def credit(self, link: NodeLink, channel: int) -> None:
        pass

    def gone(self, link: NodeLink, reason: str) -> None:
        pass
