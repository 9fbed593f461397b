"""What each node is told to prepare: the program, the environment in its layers, and its ranks.

Pure: the job, the nodes' facts and the bindings give one message per node (docs/wire.md). `--show-env` lays the same layers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mpilaunch import environ
from mpilaunch.binding import RankBinding
from mpilaunch.facts import NodeFacts
from mpilaunch.jobspec import JobSpec
from mpilaunch.mapping import Placement
from mpilaunch.processmap import process_mapping

FALLBACK_PORT = 29500
"""MASTER_PORT where a node found no free one, or rather could not try: torch's own default."""
NODE_SILENCE = 4
"""A daemon waits this many heartbeat limits for a byte before it takes the head for dead: the head notices first."""


def preparations(
    job: JobSpec, facts: Mapping[int, NodeFacts], bindings: Mapping[int, RankBinding], window: int
) -> dict[int, dict[str, Any]]:
    """Return the `prepare` message of each node, by the node's index.

    Args:
        window: credit that every stream begins with, in bytes.
    """
    address, port = master(job, facts)
    size = len(job.job_map.placements)
    universe_size = sum(len(node.slots) for node in job.allocation.nodes)
    common = {
        **environ.job_environment(
            job_id=job.job_id,
            size=size,
            node_count=len(job.job_map.nodes),
            universe_size=universe_size,
            master_addr=address,
            master_port=port,
        ),
        **job.environment,
    }
    mpi = None
    if job.mpi != "none":
        mpi = {
            "size": size,
            "universe_size": universe_size,
            "mapping": process_mapping(job.job_map),
            "descriptor": environ.PMI_DESCRIPTOR,
        }
    crosses = environ.cross_places(job.job_map.placements)
    places_of: dict[int, list[Placement]] = {index: [] for index in job.job_map.nodes}
    for place in job.job_map.placements:
        places_of[place.node].append(place)
    messages = {}
    for node_rank, (index, places) in enumerate(places_of.items()):
        ranks = []
        for place in places:
            cross_rank, cross_size = crosses[place.rank]
            variables = environ.rank_environment(
                rank=place.rank, local_rank=place.local_rank, cross_rank=cross_rank, cross_size=cross_size
            )
            if job.mpi != "none":
                variables |= environ.pmi_environment(
                    rank=place.rank, size=size, local_rank=place.local_rank, local_size=len(places)
                )
            binding = bindings[place.rank]
            ranks.append(
                {
                    "rank": place.rank,
                    "environment": {**variables, **binding.environment},
                    "unset": list(binding.unset),
                    "cpus": None if binding.cpus is None else list(binding.cpus),
                    "stdin": job.gets_stdin(place.rank),
                }
            )
        messages[index] = {
            "type": "prepare",
            "job": job.job_id,
            "program": list(job.program),
            "python": _pythons(job),
            "directory": job.wdir if job.wdir is not None else _current_directory(),
            "directory_required": job.wdir is not None,
            "environment": {**common, **environ.node_environment(node_rank=node_rank, local_size=len(places))},
            "defaults": environ.defaults_if_unset(len(places)),
            "scrub": environ.scrub_patterns(),
            "merge_stderr": job.output.merge_stderr,
            "window": window,
            "drain": job.deadlines.drain,
            "silence": job.deadlines.heartbeat * NODE_SILENCE,
            "mpi": mpi,
            "ranks": ranks,
        }
    return messages


def master(job: JobSpec, facts: Mapping[int, NodeFacts]) -> tuple[str, int]:
    """Return MASTER_ADDR and MASTER_PORT: what the user said, else an address that the nodes reach and a free port there."""
    index = job.job_map.placements[0].node
    node = job.allocation.nodes[index]
    others = [facts[other] for other in job.job_map.nodes if other != index]
    address = job.master_addr or environ.choose_master_address(facts[index], others, node.agent == "local", node.name)
    return address, job.master_port or facts[index].free_port or FALLBACK_PORT


def _current_directory() -> str:
    """Return this process's directory, by its last name when it is gone: no node has it then, and the home serves."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.environ.get("PWD") or "the current directory"


def _pythons(job: JobSpec) -> list[str]:
    """Return the interpreters to try for scripts: the user's choice alone, else the head's `python3`, else the node's own."""
    if job.python is not None:
        return [job.python]
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    head = next((path for folder in folders if os.access(path := os.path.join(folder, "python3"), os.X_OK)), None)
    return [head, "python3"] if head is not None else ["python3"]
