"""The `prepare` messages: programs, layers of the environment, and the ranks of each node; MASTER_ADDR and MASTER_PORT.

Pure: one message per node (docs/wire.md) and a common part are computed from the job, the nodes' facts and the bindings.
`--show-env` prints the environment that a node would make from its message.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mpilaunch.hosts.node_facts import NodeFacts
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
from mpilaunch.job.environment.master_address import address_of, choose_master_address
from mpilaunch.job.environment.templates import (
    AT_LAUNCH,
    arguments_of,
    fields_of_ranks,
    fields_of_world,
    master_before_launch,
    role_fields,
    roles_before_launch,
    variables_of,
)
from mpilaunch.job.spec import App, Deadlines, JobSpec, Part
from mpilaunch.job.worlds import PORTS, World, first_worlds, neighbours
from mpilaunch.placement.binding import RankBinding
from mpilaunch.placement.process_map import process_blocks
from mpilaunch.wire.environment import decode, encode, rank_environment

RENDEZVOUS_PORT = 10
"""The place of the rendezvous store's port among the free ports of a node."""
FALLBACK_PORT = 29500
"""MASTER_PORT when a node reports no free port: torch's default."""
NOTICE_SECONDS = 30.0
"""Longest wait in MPI_Init before the user is told which ranks are absent."""
NODE_SILENCE = 4
"""Heartbeat limits without a byte after which a daemon takes the head for dead; the head must notice first."""
FROZEN = 1.5
"""Heartbeat limits after which a guard kills a daemon that hangs; the head must notice and report it first."""
OF_THE_NODE = "<the node's>"
"""Printed by `--show-env` for a value that an edit extends."""
UNBOUND = RankBinding()


def silence_limits(deadlines: Deadlines) -> dict[str, float]:
    """Return how long a daemon waits for a byte of the head, and a guard for a sign of life of its daemon."""
    return {"silence": deadlines.heartbeat * NODE_SILENCE, "pulse": deadlines.heartbeat * FROZEN}


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


def world_facts(job: JobSpec, world: World, facts: Mapping[int, NodeFacts]) -> WorldFacts:
    """Return the facts of a world, derived from those of its nodes."""
    address, port = master(job, world, facts)
    near = neighbours(job, world)
    ranks_on = Counter(facts[place.node].hostname for place in near.placements)
    crowded = (index for index in world.job_map.nodes if ranks_on[facts[index].hostname] > len(facts[index].cpus))
    one_machine = len({facts[index].hostname for index in world.job_map.nodes}) < len(world.job_map.nodes)
    addresses: dict[int, str] = {}
    for index in world.job_map.nodes if len(ranks_on) > 1 else ():
        node = job.allocation.nodes[index]
        others = [facts[other] for other in near.nodes if other != index] if node.here else []
        addresses[index] = address_of(facts[index], others, node.here, node.name)
    roles: dict[str, str] = {}
    for other in first_worlds(job) if world.role else ():
        roles |= role_fields(other.role, *map(str, master(job, other, facts)))
    first_ports: dict[int, int] = {}
    if contracts.need_endpoints(_profiles(job, world)):
        masters = PORTS * len(first_worlds(job))
        first_ports = {index: (facts[index].free_port or FALLBACK_PORT) + masters for index in world.job_map.nodes}
    ports = str(port), str(second_port(port))
    known = WorldFacts(address, *ports, one_machine, frozenset(crowded), addresses, roles, first_ports)
    if contracts.need_rendezvous(_profiles(job, world)):
        known = known._replace(rendezvous=_rendezvous(world, facts[world.job_map.placements[0].node], address))
    return known


def common_preparation(job: JobSpec, world: World, known: WorldFacts, window: int) -> dict[str, Any]:
    """Return the members of `prepare` that are the same for each node of a world; `window` is each stream's first credit."""
    return {
        "job": job.job_id,
        "number": world.number,
        "apps": [_app(job, world, app, known) for app in world.apps],
        "python": _pythons(job),
        "scrub": list(contracts.SCRUBBED),
        "merge_stderr": job.output.merge_stderr,
        "window": window,
        "drain": job.deadlines.drain,
        "sweep": not job.leave_running,
        **silence_limits(job.deadlines),
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
        profiles=_profiles(job, world),
        endpoints=_endpoints(job, world, known),
        role=world.role or "default",
        rendezvous=(AT_LAUNCH, AT_LAUNCH) if known.rendezvous is None else known.rendezvous.variables,
        bare=job.bare,
    )
    common = {**contracts.job_environment(job_facts), **job.checkpoint_environment, **job.environment}
    crosses = cross_places(job_map.placements) if job.part is None else [part] * world.size
    templated = any(app.template or app.variables for app in world.apps)
    fields = fields_of_ranks(job, world) if templated else {}
    for node_rank, (index, places) in enumerate(job_map.by_node().items(), start=job.first_node_rank):
        node = NodePlace(node_rank, len(places), index in known.crowded, known.addresses.get(index, ""))
        ranks = []
        for place in places:
            binding = bindings.get(place.rank, UNBOUND)
            gpus = 0 if binding.together else len(binding.gpus)
            rank_place = RankPlace(job.first_rank + place.rank, place.local_rank, *crosses[place.rank], gpus)
            variables = contracts.rank_environment(job_facts, node, rank_place)
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
                "defaults": contracts.defaults(job_facts, node),
                "node": node_rank,
                "rendezvous": known.rendezvous._asdict() if known.rendezvous and index == job_map.placements[0].node else None,
                "ranks": ranks,
            },
        )


def variables_before_launch(job: JobSpec) -> dict[int, dict[str, str]]:
    """Return the variables that mpilaunch sets, by rank; values that only a launch decides are AT_LAUNCH."""
    variables: dict[int, dict[str, str]] = {}
    shown = job._replace(job_id=AT_LAUNCH)
    for world in first_worlds(job):
        for _, message in preparations(shown, world, _facts_before_launch(job, world), {}):
            variables |= {spec["rank"]: {**message["environment"], **spec["environment"]} for spec in message["ranks"]}
    return variables


def environment_before_launch(job: JobSpec, rank: int) -> dict[str, str]:
    """Return the environment that a rank will get, in name order, for `--show-env`.

    Values that only a launch decides are AT_LAUNCH, and a node's own value that an edit extends is OF_THE_NODE. The node's
    other variables, those of a binding and those that libpmix sets are left out.
    """
    world = next(world for world in reversed(first_worlds(job)) if world.first <= rank)
    known = _facts_before_launch(job, world)
    place = world.job_map.placements[rank - world.first]
    shown = job._replace(job_id=AT_LAUNCH)
    app = world.apps[place.app]
    extended = {name for verb, name, _, _ in app.edits if verb != "unset"}
    own = {encode(name): encode(OF_THE_NODE) for name in extended}
    message = dict(preparations(shown, world, known, {}))[place.node]
    given = {*job.environment, *app.environment, *extended}
    of_node = {name: value for name, value in pmix_defaults(job.mpi, known.one_machine).items() if name not in given}
    if job.pmi_port and PMI in mpi_offer(job.mpi):
        of_node |= {"PMI_PORT": AT_LAUNCH, "PMI_ID": AT_LAUNCH}
    variables = rank_environment({**message, **common_preparation(shown, world, known, window=0)}, rank, own, of_node)
    return {decode(name): decode(variables[name]) for name in sorted(variables)}


def _facts_before_launch(job: JobSpec, world: World) -> WorldFacts:
    several = len({-1 if job.allocation.nodes[index].here else index for index in job.job_map.nodes}) > 1
    addresses = dict.fromkeys(world.job_map.nodes, AT_LAUNCH) if several else {}
    address, port = master_before_launch(job, world)
    second = AT_LAUNCH if job.master_port is None else str(second_port(int(port)))
    return WorldFacts(address, port, second, addresses=addresses, roles=roles_before_launch(job))


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
        "notice_after": mpi_init_notice(job.deadlines),
    }


def _unique(names: list[str]) -> list[str]:
    """Return the nodes' names, made unique where needed: PMIx identifies nodes by name."""
    return names if len(set(names)) == len(names) else [f"{name}-{place}" for place, name in enumerate(names)]


def mpi_init_notice(deadlines: Deadlines) -> float:
    """Return the seconds after which a node reports which of its ranks others wait for in MPI_Init."""
    return min(NOTICE_SECONDS, deadlines.mpi_init / 2) if deadlines.mpi_init else NOTICE_SECONDS


def master(job: JobSpec, world: World, facts: Mapping[int, NodeFacts]) -> tuple[str, int]:
    """Return MASTER_ADDR and MASTER_PORT: the user's choice, else an address that the nodes reach and a free port there.

    Each spawned world has ports of its own. An attempt does not use the ports of the attempt before it, since a lost node may
    still run a rank that listens there.
    """
    index = world.job_map.placements[0].node
    node = job.allocation.nodes[index]
    others = [facts[other] for other in neighbours(job, world).nodes if other != index]
    address = job.master_addr or choose_master_address(facts[index], others, node.here, node.name)
    port = facts[index].free_port or FALLBACK_PORT
    port += PORTS * (port == job.last_port)
    return address, world.master_port(job.master_port or port)


def second_port(port: int) -> int:
    """Return the port beside MASTER_PORT, so that parts of a job that are started by hand choose the same."""
    return port + 1 if port < 65535 else port - 1


def _rendezvous(world: World, facts: NodeFacts, address: str) -> Rendezvous:
    """Return the store of a world, on rank 0's node, at MASTER_ADDR or, as Horovod knows IPv4 only, at an IPv4 address."""
    import hashlib  # few launches need it

    if ":" in address:
        address = next((other for other in facts.addresses if ":" not in other), address)
    # Its requests are plain text, so that the name of the world in PMIx must not follow from the secret.
    secret = hashlib.sha256(b"rendezvous " + world.namespace.encode()).hexdigest()
    return Rendezvous(address, (facts.free_port or FALLBACK_PORT) + RENDEZVOUS_PORT, secret)


def _profiles(job: JobSpec, world: World) -> tuple[str, ...]:
    """Return the profiles of a world: a spawned one finds its ranks by MPI only."""
    return () if world.parent else job.profiles


def _endpoints(job: JobSpec, world: World, known: WorldFacts) -> tuple[Endpoint, ...]:
    """Return the endpoint of each rank, whose role is its program's ROLE_NAME; nothing if no profile needs them."""
    if not contracts.need_endpoints(_profiles(job, world)):
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
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed: nodes fall back to the home directory
        here = os.environ.get("PWD") or "the current directory"
    return {
        "program": arguments_of(app, _fields(job, world, app, known)),
        # Relative to the head's directory, as for mpirun.
        "directory": here if directory is None else os.path.join(here, directory),
        "directory_required": directory is not None,
        "environment": dict(app.environment),
        "edits": [list(edit) for edit in app.edits],
    }


def _pythons(job: JobSpec) -> list[str]:
    """Return the interpreters to try for scripts: only the user's choice, else the head's `python3`, then the node's own."""
    if job.python is not None:
        return [job.python]
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    head = next((path for folder in folders if os.access(path := os.path.join(folder, "python3"), os.X_OK)), None)
    return ["python3"] if head is None else [head, "python3"]
