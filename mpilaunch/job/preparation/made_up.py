"""A job as on nodes that are made up, for --dry-run: where its ranks would be, and on which CPUs. Pure."""

from __future__ import annotations

from mpilaunch.hosts.network_facts import NetworkFacts
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.preparation.pending_map import map_pending
from mpilaunch.job.spec import JobSpec
from mpilaunch.placement.gpu_binding import GpuPolicy, bind_ranks, describe_binding
from mpilaunch.placement.synthetic import cpus_of


def bound_on(description: str, job: JobSpec) -> tuple[JobSpec, list[str]]:
    """Return the job with its map, and a line for each rank with the cores that it would be bound to; none if unbound.

    All nodes have the CPUs of the description (`placement.synthetic`), and no GPU. Raises UsageError and LaunchError.
    """
    cpus = cpus_of(description)
    facts = {node.index: NodeFacts(node.name, "", "", cpus, (), NetworkFacts(), None, 0) for node in job.allocation.nodes}
    if job.pending:
        job = map_pending(job, facts)
    if job.cpu.bind_to == "none" and not job.report_bindings:
        return job, []
    bindings = bind_ranks(job.allocation, job.job_map, facts, GpuPolicy(), job.cpu)
    names = {place.rank: job.allocation.nodes[place.node].name for place in job.job_map.placements}
    return job, [f"rank {rank} on {names[rank]}: {describe_binding(one, cpus)}" for rank, one in sorted(bindings.items())]
