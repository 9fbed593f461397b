"""The map of a job that depends on the topology of its nodes, once that is known. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.allocation import CORES, Node, Slot
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.spec import JobSpec, settle_ranks
from mpilaunch.placement.program_shares import map_apps
from mpilaunch.placement.topology import objects_of


def map_pending(job: JobSpec, facts: Mapping[int, NodeFacts]) -> JobSpec:
    """Return the job with its pending map made; raises LaunchError when the ranks do not fit."""
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
