"""Where the machines of a job reach each other: their network, their addresses on it, and what leads libraries there.

Pure. Loaded only by jobs on several machines.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.environment.network_variables import Choices, network_choices
from mpilaunch.job.environment.node_addresses import address_of, reached_addresses
from mpilaunch.job.preparation.network_note import network_note
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.worlds import World, first_worlds, neighbours
from mpilaunch.placement.network import Network, choose_network


class Reach(NamedTuple):
    """How several machines reach each other.

    Attributes:
        addresses: of each node, by index.
        variables: of each node, by which libraries find the network.
        note: what the user reads of it, "" for nothing.
    """

    addresses: Mapping[int, str]
    variables: Mapping[int, Mapping[str, str]]
    note: str


def reach_of(job: JobSpec, world: World, facts: Mapping[int, NodeFacts]) -> Reach:
    """Return how the machines of a world reach each other; raises LaunchError for one that is not on `--network`."""
    reached = _reached(job, facts)
    network = _network(job, world, facts, reached)
    near = {index: facts[index] for index in _nodes_together(job, world, facts)}
    addresses = {index: _address(job, index, facts, network, reached) for index in near}
    if job.bare:
        return Reach(addresses, {}, "")
    given = set(job.environment).union(*([*app.environment, *app.variables] for app in job.apps))
    choices = network_choices(network, near, given) if network else Choices()
    names = {index: job.allocation.nodes[index].name for index in near}
    return Reach(addresses, choices.variables, network_note(job.network, network, choices, near, names))


def network_of(job: JobSpec, world: World, facts: Mapping[int, NodeFacts]) -> Network | None:
    """Return the network that the machines of a world share; None for a single machine, and as long as not all are known.

    Raises LaunchError if a machine is not on the network of `--network`.
    """
    return _network(job, world, facts, _reached(job, facts))


def server_address(job: JobSpec, facts: Mapping[int, NodeFacts]) -> str:
    """Return where the head reaches rank 0's node."""
    world = first_worlds(job)[0]
    index = world.job_map.placements[0].node
    node = job.allocation.nodes[index]
    if node.here or index not in facts:
        return "127.0.0.1" if node.here else node.name
    reached = _reached(job, facts)
    return _address(job, index, facts, _network(job, world, facts, reached), reached)


def _network(job: JobSpec, world: World, facts: Mapping[int, NodeFacts], reached: Mapping[int, str]) -> Network | None:
    names = {index: job.allocation.nodes[index].name for index in _nodes_together(job, world, facts)}
    if not facts.keys() >= names.keys():
        return None
    return choose_network({index: facts[index] for index in names}, reached, job.network, names)


def _nodes_together(job: JobSpec, world: World, facts: Mapping[int, NodeFacts]) -> Collection[int]:
    """Return the nodes whose ranks reach each other: those of a spawned world reach all that run already."""
    return facts.keys() if world.parent else neighbours(job, world).nodes


def _address(
    job: JobSpec, index: int, facts: Mapping[int, NodeFacts], network: Network | None, reached: Mapping[int, str]
) -> str:
    node = job.allocation.nodes[index]
    on_network = network.links[index].address if network else ""
    return address_of(facts[index], on_network, reached.get(index, ""), facts[index].hostname if node.here else node.name)


def _reached(job: JobSpec, facts: Mapping[int, NodeFacts]) -> dict[int, str]:
    return reached_addresses(facts, {index for index in facts if job.allocation.nodes[index].here})
