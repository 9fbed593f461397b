"""A contract: the variables from which one framework, library or launcher reads a rank's place in the job.

Pure. Each module of `contracts` makes one `Contract`; its functions map the facts below to variables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mpilaunch.placement.mapping import Placement

Variables = Mapping[str, str]

PMI_DESCRIPTOR = 60
"""The rank's connection to PMI: above the descriptors that programs and shells open by number (bash takes 10 and 255)."""
PMI, PMIX = "pmi", "pmix"
"""A connection for PMI-1 and PMI-2, and the node's libpmix."""
_OFFERS = {"auto": (PMI, PMIX), "pmi1": (PMI,), "pmi2": (PMI,), "pmix": (PMIX,), "none": ()}


def mpi_offer(mpi: str) -> tuple[str, ...]:
    """Return the process-management interfaces that a value of `--mpi` offers; by default both, as any MPI library may run."""
    return _OFFERS[mpi]


class Endpoint(NamedTuple):
    """Where a rank may listen, as the other nodes reach it; its role is the ROLE_NAME of its program."""

    host: str
    port: str
    role: str = "default"

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class JobFacts(NamedTuple):
    """Facts shared by all ranks of a world.

    Attributes:
        job_id, run_id: the id of this attempt, and that of all attempts of the job.
        size, node_count: ranks in the world, and nodes that run at least one of them.
        universe_size: slots in the allocation, used or not.
        master_addr, master_port: where rank 0 listens, as text.
        second_port: another port for rank 0 to listen on, as text.
        restart_count, max_restarts: restarts so far, and the most allowed.
        mpi, threads: as in `JobSpec`.
        pmi_port: ranks reach PMI through a port of their node instead of an inherited descriptor.
        spawned: MPI_Comm_spawn created this world.
        profiles: names of the profiles that apply.
        endpoints: the endpoint of each rank, if a profile needs them.
        role: the name of the world's role.
        rendezvous: where the ranks reach the store that rank 0's node serves: HOST:PORT/SECRET and PORT; if a profile needs it.
        bare: only mpilaunch's own variables are set.
        independent: no variables are set.
    """

    job_id: str
    run_id: str
    size: int
    node_count: int
    universe_size: int
    master_addr: str
    master_port: str
    second_port: str = ""
    restart_count: int = 0
    max_restarts: int = 0
    mpi: str = "auto"
    threads: str = "auto"
    pmi_port: bool = False
    spawned: bool = False
    profiles: tuple[str, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    role: str = "default"
    rendezvous: tuple[str, str] = ("", "")
    bare: bool = False
    independent: bool = False

    @property
    def second_address(self) -> str:
        return Endpoint(self.master_addr, self.second_port).address


class NodePlace(NamedTuple):
    """Facts shared by all ranks of one node.

    Attributes:
        node_rank: place among the nodes that run at least one rank, not in the allocation.
        local_size: ranks of the world on this node.
        crowded: the machine runs more ranks than it has CPUs.
        address: where other machines reach the node; "" if the job is on one machine.
        name: the node's name in the allocation.
    """

    node_rank: int
    local_size: int
    crowded: bool = False
    address: str = ""
    name: str = ""


class RankPlace(NamedTuple):
    """Facts about one rank.

    Attributes:
        rank, local_rank: place in the world, and on its node.
        cross_rank, cross_size: place of its node among those that have this local rank, and their number.
        gpus: how many GPUs the rank sees and has for itself, as far as mpilaunch knows.
    """

    rank: int
    local_rank: int
    cross_rank: int
    cross_size: int
    gpus: int = 0


def cross_places(placements: Sequence[Placement]) -> list[tuple[int, int]]:
    """Return (cross_rank, cross_size) for each placement: Horovod's rule for nodes with unequal numbers of ranks."""
    sizes = Counter(placement.local_rank for placement in placements)
    seen: Counter[int] = Counter()
    places: dict[int, tuple[int, int]] = {}
    for placement in sorted(placements, key=lambda placement: placement.node):
        places[placement.rank] = (seen[placement.local_rank], sizes[placement.local_rank])
        seen[placement.local_rank] += 1
    return [places[placement.rank] for placement in placements]


def _nothing(*facts: object) -> Variables:
    return {}


class Contract(NamedTuple):
    """The variables of one framework, library or launcher.

    Attributes:
        job, node, rank: return the variables that mpilaunch sets: shared by the world, shared on a node, or of one rank.
        defaults: returns variables that are set only if neither the node nor the user sets them.
        overridable: names that the user may set to another value; all other names state facts of the job map.
        also_fixed: names that state such facts and are set elsewhere.
        scrubbed: variables of a surrounding job, which a rank would join: exact names, and prefixes written `PREFIX*`.
        endpoints: it needs the endpoint of each rank.
    """

    job: Callable[[JobFacts], Variables] = _nothing
    node: Callable[[JobFacts, NodePlace], Variables] = _nothing
    rank: Callable[[JobFacts, NodePlace, RankPlace], Variables] = _nothing
    defaults: Callable[[JobFacts, NodePlace], Variables] = _nothing
    overridable: frozenset[str] = frozenset()
    also_fixed: frozenset[str] = frozenset()
    scrubbed: tuple[str, ...] = ()
    endpoints: bool = False
    rendezvous: bool = False
