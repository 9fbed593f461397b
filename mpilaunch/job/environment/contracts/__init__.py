"""The table of contracts. To add one, write its module and add a line here.

Pure. Each layer of a rank's environment is the union of what the contracts return for it; no two contracts set the same name.
"""

from __future__ import annotations

from mpilaunch.job.environment.contract import JobFacts, NodePlace, RankPlace
from mpilaunch.job.environment.contracts import (
    deepspeed,
    horovod,
    intel,
    jax,
    mpich,
    openmpi,
    own,
    slurm,
    tensorflow,
    torch,
)

CONTRACTS = tuple(
    module.CONTRACT
    for module in (slurm, mpich, intel, openmpi, own, torch, deepspeed, horovod, jax, tensorflow)
)

SCRUBBED = tuple(pattern for contract in CONTRACTS for pattern in contract.scrubbed)
"""What a node drops from its own variables before it adds ours: exact names, and prefixes written `PREFIX*`."""


def job_environment(job: JobFacts) -> dict[str, str]:
    """Return what every rank of a world shares."""
    return {name: value for contract in CONTRACTS for name, value in contract.job(job).items()}


def node_environment(job: JobFacts, node: NodePlace) -> dict[str, str]:
    """Return what every rank of one node shares."""
    return {name: value for contract in CONTRACTS for name, value in contract.node(job, node).items()}


def rank_environment(job: JobFacts, node: NodePlace, rank: RankPlace) -> dict[str, str]:
    """Return what only one rank has."""
    return {name: value for contract in CONTRACTS for name, value in contract.rank(job, node, rank).items()}


def defaults(job: JobFacts, node: NodePlace) -> dict[str, str]:
    """Return what a node sets where neither the node nor the user does."""
    return {name: value for contract in CONTRACTS for name, value in contract.defaults(job, node).items()}


def is_listed(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a name is one of the patterns, or starts with one that is written `PREFIX*`."""
    return any(name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns)


def is_scrubbed(name: str) -> bool:
    """Return whether the variable belongs to a surrounding job."""
    return is_listed(name, SCRUBBED)


def _fixed() -> frozenset[str]:
    job = JobFacts("", "", 0, 0, 0, "", "")
    node, rank = NodePlace(0, 0), RankPlace(0, 0, 0, 0)
    names = {*job_environment(job), *node_environment(job, node), *rank_environment(job, node, rank)}
    overridable = frozenset[str]().union(*(contract.overridable for contract in CONTRACTS))
    return frozenset(names - overridable).union(*(contract.also_fixed for contract in CONTRACTS))


FIXED = _fixed()
"""Facts of the job and its map, which the user chooses with -np, -N and --map-by: a value set by hand would be wrong."""
