"""The table of contracts, and that of profiles, which apply only when named by `--profile`. To add one, add a line here.

Pure. Each layer of a rank's environment is the union of what the contracts return for it; no two contracts set the same name.
"""

from __future__ import annotations

from collections.abc import Iterable

from mpilaunch.job import servers
from mpilaunch.job.environment.contract import Contract, JobFacts, NodePlace, RankPlace
from mpilaunch.job.environment.contracts import (
    batch_systems,
    deepspeed,
    horovod,
    intel,
    jax,
    mpich,
    openmpi,
    own,
    tensorflow,
    torch,
    tpu_neuron_ascend,
)

CONTRACTS = [
    module.CONTRACT for module in (batch_systems, mpich, intel, openmpi, own, torch, deepspeed, horovod, jax, tensorflow)
]
PROFILES = {
    "ascend": tpu_neuron_ascend.ASCEND,
    "flux": batch_systems.FLUX,
    "horovod": horovod.PROFILE,
    "lightning": torch.LIGHTNING,
    "neuron": tpu_neuron_ascend.NEURON,
    "pals": batch_systems.PALS,
    "slurm": batch_systems.SLURM,
    "tf": tensorflow.PROFILE,
    "tpu": tpu_neuron_ascend.TPU,
}
"""The user may set each variable of a profile to another value."""
PROFILE_NAMES = (*PROFILES, *servers.NAMES)

SCRUBBED = tuple(pattern for contract in CONTRACTS for pattern in contract.scrubbed)
"""Variables that a node drops from its own environment first: exact names, and prefixes written `PREFIX*`."""


def profile(name: str) -> Contract:
    """Return the contract of a profile."""
    if name in PROFILES:
        return PROFILES[name]
    from mpilaunch.job.servers.table import SERVERS  # few jobs are servers

    return SERVERS[name].variables


def need_endpoints(profiles: Iterable[str]) -> bool:
    """Return whether one of these profiles needs the endpoint of each rank."""
    return any(profile(name).endpoints for name in profiles)


def need_rendezvous(profiles: Iterable[str]) -> bool:
    """Return whether one of these profiles needs the rendezvous store of rank 0's node."""
    return any(profile(name).rendezvous for name in profiles)


def _contracts(job: JobFacts) -> list[Contract]:
    if job.independent:
        return []
    return [own.CONTRACT] if job.bare else [*CONTRACTS, *map(profile, job.profiles)]


def job_environment(job: JobFacts) -> dict[str, str]:
    """Return the variables shared by all ranks of a world."""
    return {name: value for contract in _contracts(job) for name, value in contract.job(job).items()}


def node_environment(job: JobFacts, node: NodePlace) -> dict[str, str]:
    """Return the variables shared by all ranks of one node."""
    return {name: value for contract in _contracts(job) for name, value in contract.node(job, node).items()}


def rank_environment(job: JobFacts, node: NodePlace, rank: RankPlace) -> dict[str, str]:
    """Return the variables of one rank."""
    return {name: value for contract in _contracts(job) for name, value in contract.rank(job, node, rank).items()}


def defaults(job: JobFacts, node: NodePlace) -> dict[str, str]:
    """Return the variables that are set only if neither the node nor the user sets them."""
    return {name: value for contract in _contracts(job) for name, value in contract.defaults(job, node).items()}


def is_listed(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a name matches a pattern: an exact name, or a prefix written `PREFIX*`."""
    return any(name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns)


def _fixed() -> frozenset[str]:
    job = JobFacts("", "", 0, 0, 0, "", "")
    node, rank = NodePlace(0, 0), RankPlace(0, 0, 0, 0)
    names = {*job_environment(job), *node_environment(job, node), *rank_environment(job, node, rank)}
    overridable = frozenset[str]().union(*(contract.overridable for contract in CONTRACTS))
    return frozenset(names - overridable).union(*(contract.also_fixed for contract in CONTRACTS))


FIXED = _fixed()
"""Variables that state facts of the job map; the user chooses those with -np, -N and --map-by, never by setting a variable."""
