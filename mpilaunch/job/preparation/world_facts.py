"""What is known of a world once its nodes have reported: MASTER_ADDR and MASTER_PORT, and where its ranks are reached.

Pure: derived from the job and from the facts of the nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from mpilaunch.defaults import MASTER_PORT
from mpilaunch.hosts.node_facts import NodeFacts
from mpilaunch.job.environment import contracts
from mpilaunch.job.environment.templates import role_fields
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.worlds import PORTS, World, first_worlds, neighbours

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
        variables: of each node, by which libraries find the network that the nodes share.
        note: what the user reads of that network, "" for nothing.
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
    variables: Mapping[int, Mapping[str, str]] = {}
    note: str = ""


def world_facts(job: JobSpec, world: World, facts: Mapping[int, NodeFacts]) -> WorldFacts:
    """Return the facts of a world, derived from those of its nodes."""
    near = neighbours(job, world)
    addresses: Mapping[int, str] = {}
    variables: Mapping[int, Mapping[str, str]] = {}
    note = ""
    if len({facts[index].machine for index in (facts if world.parent else near.nodes)}) > 1:
        from mpilaunch.job.preparation.reach import reach_of  # jobs on one machine do not need it

        addresses, variables, note = reach_of(job, world, facts)
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
    known = WorldFacts(
        address, *ports, one_machine, frozenset(crowded), addresses, roles, first_ports, variables=variables, note=note
    )
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


def second_port(port: int) -> int:
    """Return the port beside MASTER_PORT, so that parts of a job that are started by hand choose the same."""
    return port + 1 if port < 65535 else port - 1


def profiles_of(job: JobSpec, world: World) -> tuple[str, ...]:
    """Return the profiles of a world: a spawned one finds its ranks by MPI only."""
    return () if world.parent else job.profiles


def _rendezvous(world: World, facts: NodeFacts, address: str) -> Rendezvous:
    """Return the store of a world, on rank 0's node, at MASTER_ADDR or, as Horovod knows IPv4 only, at an IPv4 address."""
    import hashlib  # few launches need it

    if ":" in address:
        address = next((other for other in facts.network.addresses if ":" not in other), address)
    # Its requests are plain text, so that the name of the world in PMIx must not follow from the secret.
    secret = hashlib.sha256(b"rendezvous " + world.namespace.encode()).hexdigest()
    return Rendezvous(address, (facts.free_port or MASTER_PORT) + RENDEZVOUS_PORT, secret)
