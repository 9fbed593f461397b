"""What is known of a world once its nodes have reported: MASTER_ADDR and MASTER_PORT, and where its ranks are reached.

Pure: derived from the job and from the facts of the nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from mpilaunch.defaults import MASTER_PORT
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.environment import contracts
from mpilaunch.job.environment.network_variables import Choices, network_choices
from mpilaunch.job.environment.node_addresses import address_of, reached_addresses
from mpilaunch.job.environment.templates import role_fields
from mpilaunch.job.preparation.network_note import network_note
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.worlds import PORTS, World, first_worlds, neighbours
from mpilaunch.placement.network import Network, choose_network

RENDEZVOUS_PORT = 10
"""The place of the rendezvous store's port among the free ports of a node."""


class Rendezvous(NamedTuple):
    """The store at which the ranks of Horovod meet: where rank 0's node serves it, and the secret of its ranks."""

    address: str
    port: int
    secret: str

    @property
    def variables(self) -> tuple[str, str]:
        """Address and port for Horovod, which puts the address, with whatever it holds, in front of each path."""
        return f"{self.address}:{self.port}/{self.secret}", str(self.port)


class WorldFacts(NamedTuple):
    """Facts of a world that are known only when its nodes have reported.

    Attributes:
        master_addr, master_port: where rank 0 listens, as text.
        second_port: another port for rank 0 to listen on, as text.
        one_machine: several nodes of the world are one machine.
        crowded: indexes of the nodes whose machine runs more ranks than it has CPUs.
        addresses: where other machines reach each node, by index; empty if the job is on one machine.
        roles: where the other roles are, by the field of a template that names it.
        first_ports: the first of each node's ports for ranks, by index; empty unless a profile needs them.
        rendezvous: the store that rank 0's node serves, if a profile needs it.
        network: that the nodes share; None on one machine, or if they share none.
        choices: the variables that lead libraries there.
        note: what the user reads of it, "" for nothing.
    """

    master_addr: str
    master_port: str
    second_port: str
    one_machine: bool = False
    crowded: frozenset[int] = frozenset()
    addresses: Mapping[int, str] = {}
    roles: Mapping[str, str] = {}
    first_ports: Mapping[int, int] = {}
    rendezvous: Rendezvous | None = None
    network: Network | None = None
    choices: Choices = Choices()
    note: str = ""


def world_facts(job: JobSpec, world: World, facts: Mapping[int, NodeFacts]) -> WorldFacts:
    """Return the facts of a world, derived from those of its nodes."""
    near = neighbours(job, world)
    of_near = {index: facts[index] for index in near.nodes}
    network = network_of(job, world, facts)
    addresses = _addresses(job, of_near, network)
    ranks_on = Counter(facts[place.node].hostname for place in near.placements)
    crowded = (index for index in world.job_map.nodes if ranks_on[facts[index].hostname] > len(facts[index].cpus))
    one_machine = len({facts[index].hostname for index in world.job_map.nodes}) < len(world.job_map.nodes)

    def master(of: World) -> tuple[str, int]:
        address = addresses.get(of.job_map.placements[0].node, "127.0.0.1")
        return job.master_addr or address, master_port(job, of, facts)

    address, port = master(world)
    roles: dict[str, str] = {}
    for other in first_worlds(job) if world.role else ():
        roles |= role_fields(other.role, *map(str, master(other)))
    first_ports: dict[int, int] = {}
    if contracts.need_endpoints(profiles_of(job, world)):
        masters = PORTS * len(first_worlds(job))
        first_ports = {index: (facts[index].free_port or MASTER_PORT) + masters for index in world.job_map.nodes}
    ports = str(port), str(second_port(port))
    known = WorldFacts(address, *ports, one_machine, frozenset(crowded), addresses, roles, first_ports)
    if addresses and not job.bare:
        known = known._replace(network=network, **_guidance(job, network, of_near))
    if contracts.need_rendezvous(profiles_of(job, world)):
        known = known._replace(rendezvous=_rendezvous(world, facts[world.job_map.placements[0].node], address))
    return known


def master_port(job: JobSpec, world: World, facts: Mapping[int, NodeFacts]) -> int:
    """Return MASTER_PORT: the user's choice, else a port that is free on rank 0's node.

    Each spawned world has ports of its own. An attempt does not use the ports of the attempt before it, since a lost node may
    still run a rank that listens there.
    """
    port = facts[world.job_map.placements[0].node].free_port or MASTER_PORT
    port += PORTS * (port == job.last_port)
    return world.master_port(job.master_port or port)


def network_of(job: JobSpec, world: World, facts: Mapping[int, NodeFacts]) -> Network | None:
    """Return the network that the machines of a world share; None for a single machine, and as long as not all are known.

    Raises LaunchError if a machine is not on the network of `--network`.
    """
    nodes = {index: job.allocation.nodes[index] for index in neighbours(job, world).nodes}
    if not facts.keys() >= nodes.keys():
        return None
    known = {index: facts[index] for index in nodes}
    return choose_network(known, _reached(job, known), job.network, {index: node.name for index, node in nodes.items()})


def server_address(job: JobSpec, facts: Mapping[int, NodeFacts]) -> str:
    """Return where the head reaches rank 0's node."""
    (world, *_) = first_worlds(job)
    index = world.job_map.placements[0].node
    node = job.allocation.nodes[index]
    if node.here or index not in facts:
        return "127.0.0.1" if node.here else node.name
    network = network_of(job, world, facts)
    on_network = network.links[index].address if network else ""
    return address_of(facts[index], on_network, _reached(job, facts).get(index, ""), node.name)


def _reached(job: JobSpec, facts: Mapping[int, NodeFacts]) -> dict[int, str]:
    return reached_addresses(facts, {index for index in facts if job.allocation.nodes[index].here})


def _addresses(job: JobSpec, facts: Mapping[int, NodeFacts], network: Network | None) -> dict[int, str]:
    """Return where several machines reach each node; nothing for a single machine."""
    if len({one.machine for one in facts.values()}) < 2:
        return {}
    reached = _reached(job, facts)
    addresses: dict[int, str] = {}
    for index, one in facts.items():
        on_network = network.links[index].address if network else ""
        node = job.allocation.nodes[index]
        name = one.hostname if node.here else node.name
        addresses[index] = address_of(one, on_network, reached.get(index, ""), name)
    return addresses


def second_port(port: int) -> int:
    """Return the port beside MASTER_PORT, so that parts of a job that are started by hand choose the same."""
    return port + 1 if port < 65535 else port - 1


def profiles_of(job: JobSpec, world: World) -> tuple[str, ...]:
    """Return the profiles of a world: a spawned one finds its ranks by MPI only."""
    return () if world.parent else job.profiles


def _guidance(
    job: JobSpec, network: Network | None, facts: Mapping[int, NodeFacts]
) -> dict[str, Any]:
    """Return `choices` and `note` of several machines."""
    given = set(job.environment).union(*([*app.environment, *app.variables] for app in job.apps))
    choices = network_choices(network, facts, given) if network else Choices()
    names = {index: job.allocation.nodes[index].name for index in facts}
    return {"choices": choices, "note": network_note(job.network, network, choices, facts, names)}


def _rendezvous(world: World, facts: NodeFacts, address: str) -> Rendezvous:
    """Return the store of a world, on rank 0's node, at MASTER_ADDR or, as Horovod knows IPv4 only, at an IPv4 address."""
    import hashlib  # few launches need it

    if ":" in address:
        address = next((other for other in facts.network.addresses if ":" not in other), address)
    # Its requests are plain text, so that the name of the world in PMIx must not follow from the secret.
    secret = hashlib.sha256(b"rendezvous " + world.namespace.encode()).hexdigest()
    return Rendezvous(address, (facts.free_port or MASTER_PORT) + RENDEZVOUS_PORT, secret)
