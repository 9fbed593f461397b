"""The `prepare` messages: programs, layers of the environment, and the ranks of each node.

Pure: one message per node (docs/wire.md) and a common part are computed from the job, the nodes' facts and the bindings.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from mpilaunch.job.environment import contracts
from mpilaunch.job.environment.contract import (
    PMI,
    PMI_DESCRIPTOR,
    Endpoint,
    JobFacts,
    NodePlace,
    RankPlace,
    cross_places,
    mpi_offer,
)
from mpilaunch.job.environment.contracts.openmpi import pmix_defaults
from mpilaunch.job.environment.templates import AT_LAUNCH, arguments_of, fields_of_ranks, fields_of_world, variables_of
from mpilaunch.job.preparation.world_facts import WorldFacts, profiles_of
from mpilaunch.job.spec import App, JobSpec, Part
from mpilaunch.job.worlds import World
from mpilaunch.placement.gpu_binding import RankBinding
from mpilaunch.placement.nic_binding import nic_variables
from mpilaunch.placement.process_map import process_blocks

UNBOUND = RankBinding()


def common_preparation(job: JobSpec, world: World, known: WorldFacts, window: int) -> dict[str, Any]:
    """Return the members of `prepare` that are the same for each node of a world; `window` is each stream's first credit."""
    return {
        "job": job.job_id,
        "number": world.number,
        "apps": [_app(job, world, app, known) for app in world.apps],
        "python": [job.python] if job.python else list(dict.fromkeys([job.head_python or "python3", "python3"])),
        "scrub": list(contracts.SCRUBBED),
        "stdout": job.output.stdout,
        "merge_stderr": job.output.merge_stderr,
        "window": window,
        "drain": job.deadlines.drain,
        "sweep": not job.leave_running,
        "independent": job.independent,
        **job.deadlines.silence_limits(),
        "mpi": mpi_description(job, world, known.one_machine),
    }


def preparations(
    job: JobSpec, world: World, known: WorldFacts, bindings: Mapping[int, RankBinding]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the index of each node of a world and its `prepare` message without the common part; binds ranks as given."""
    job_map = world.job_map
    part = job.part or Part(0, 1)
    job_facts = JobFacts(
        job_id=job.job_id,
        run_id=job.run_id,
        size=part.nodes * world.size,
        node_count=part.nodes * len(job_map.nodes),
        universe_size=part.nodes * job.universe,
        master_addr=known.master_addr,
        master_port=known.master_port,
        second_port=known.second_port,
        restart_count=job.restart,
        max_restarts=job.restarts.limit,
        mpi=job.mpi,
        threads=job.threads,
        pmi_port=job.pmi_port,
        spawned=bool(world.parent),
        profiles=profiles_of(job, world),
        endpoints=_endpoints(job, world, known),
        role=world.role or "default",
        rendezvous=(AT_LAUNCH, AT_LAUNCH) if known.rendezvous is None else known.rendezvous.variables,
        bare=job.bare,
        independent=job.independent,
    )
    common = {**contracts.job_environment(job_facts), **job.checkpoint_environment, **job.environment}
    crosses = cross_places(job_map.placements) if job.part is None else [part] * world.size
    templated = any(app.template or app.variables for app in world.apps)
    fields = fields_of_ranks(job, world) if templated else {}
    for node_rank, (index, places) in enumerate(job_map.by_node().items(), start=job.first_node_rank):
        address, name = known.addresses.get(index, ""), job.allocation.nodes[index].name
        node = NodePlace(node_rank, len(places), index in known.crowded, address, name)
        ranks = []
        for place in places:
            binding = bindings.get(place.rank, UNBOUND)
            gpus = 0 if binding.together else len(binding.gpus)
            rank_place = RankPlace(job.first_rank + place.rank, place.local_rank, *crosses[place.rank], gpus)
            variables = {**contracts.rank_environment(job_facts, node, rank_place), **nic_variables(binding.nics)}
            app = world.apps[place.app]
            # What the user sets precedes all but the facts of the map.
            for name in {*job.environment, *app.environment, *app.variables} - contracts.FIXED:
                variables.pop(name, None)
            if app.variables:
                variables = {**variables_of(app, {**_fields(job, world, app, known), **fields[place.rank]}), **variables}
            ranks.append(
                {
                    "rank": world.first + place.rank,
                    "app": place.app,
                    "environment": {**variables, **binding.environment},
                    "unset": list(binding.unset),
                    "cpus": None if binding.cpus is None else list(binding.cpus),
                    "stdin": not world.parent and job.gets_stdin(world.first + place.rank),
                    "fields": fields[place.rank] if app.template else None,
                }
            )
        yield (
            index,
            {
                "type": "prepare",
                "environment": {**contracts.node_environment(job_facts, node), **common},
                "defaults": {**contracts.defaults(job_facts, node), **known.variables.get(index, {})},
                "node": node_rank,
                "rendezvous": known.rendezvous._asdict() if known.rendezvous and index == job_map.placements[0].node else None,
                "ranks": ranks,
            },
        )


def mpi_description(job: JobSpec, world: World, one_machine: bool = False) -> dict[str, Any] | None:
    """Return the description of a world that every node gets for MPI; None when the job offers no MPI protocol."""
    offer = mpi_offer(job.mpi)
    if not offer:
        return None
    nodes, places = world.job_map.nodes, world.job_map.placements
    counts = Counter(place.app for place in places)
    return {
        "world": world.name,
        "namespace": world.namespace,
        "first": world.first,
        "size": world.size,
        "universe_size": job.universe,
        "pmi_universe_size": job.universe_size or 0,
        "hosts": _unique([job.allocation.nodes[node].name for node in nodes]),
        "blocks": process_blocks(world.job_map),
        "app_sizes": [counts[app] for app in range(len(world.apps))],
        "parent": world.parent,
        "pairs": dict(world.pairs),
        "offer": list(offer),
        "library": job.pmix_library,
        "pmix_defaults": pmix_defaults(job.mpi, one_machine),
        "descriptor": PMI_DESCRIPTOR if PMI in offer and not job.pmi_port else None,
        "port": PMI in offer and job.pmi_port,
        "notice_after": job.deadlines.mpi_init_notice,
    }


def _unique(names: list[str]) -> list[str]:
    """Return the nodes' names, made unique where needed: PMIx identifies nodes by name."""
    return names if len(set(names)) == len(names) else [f"{name}-{place}" for place, name in enumerate(names)]


def _endpoints(job: JobSpec, world: World, known: WorldFacts) -> tuple[Endpoint, ...]:
    """Return the endpoint of each rank, whose role is its program's ROLE_NAME; nothing if no profile needs them."""
    if not contracts.need_endpoints(profiles_of(job, world)):
        return ()
    roles = [{**job.environment, **app.environment}.get("ROLE_NAME", "default") for app in world.apps]
    return tuple(
        Endpoint(
            known.addresses.get(place.node, "127.0.0.1"),
            str(known.first_ports[place.node] + of_job.local_rank) if known.first_ports else AT_LAUNCH,
            roles[place.app],
        )
        for place, of_job in zip(world.job_map.placements, job.job_map.placements[world.first :], strict=False)
    )


def _fields(job: JobSpec, world: World, app: App, known: WorldFacts) -> dict[str, int | str]:
    return fields_of_world(job, world, app, (known.master_addr, known.master_port), known.roles)


def _app(job: JobSpec, world: World, app: App, known: WorldFacts) -> dict[str, Any]:
    directory = app.wdir or job.wdir
    usual = "" if job.independent else job.directory  # the user's own, as for ssh, or the head's, as for mpirun
    return {
        "program": arguments_of(app, _fields(job, world, app, known)),
        "directory": usual if directory is None else os.path.join(job.directory, directory),
        "directory_required": directory is not None,
        "environment": dict(app.environment),
        "edits": [list(edit) for edit in app.edits],
    }
