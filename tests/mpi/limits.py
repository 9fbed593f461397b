"""Known limits of MPI libraries, with reasons. The cases still run, under mpilaunch and the library's launcher alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.mpi.places import TWO_LOCAL, Place

UCX_PORTS = "the default, UCX, has no ports"
MPICH_UCX = "MPICH over UCX has no ports, which spawning and publishing need"
FINALIZE = (
    "The program prints everything; then most runs hang in MPI_Finalize over UCX's TCP: one rank waits for another to take "
    "part in closing a connection, while the other already waits in PMI's last barrier"
)


@dataclass(frozen=True)
class Limit:
    """One limit.

    Attributes:
        family, works: where it is; no works means all.
        reason: what it comes from.
        says: words of the error that the library gives; empty for a hang in MPI_Finalize, when all has been printed.
        hosts, ranks: from how many on.
    """

    family: str
    works: tuple[str, ...]
    reason: str
    says: str = ""
    hosts: int = 1
    ranks: int = 1


LIMITS = (
    Limit("debian-mpich", ("spawn", "spawn multiple"), MPICH_UCX, says="Error in spawn call"),
    Limit("debian-mpich", ("publish",), MPICH_UCX, says="not supported with ucx netmod"),
    Limit("debian-mpich", ("ring", "all-reduce", "programs a : b"), FINALIZE, hosts=2),
)


@dataclass(frozen=True)
class Leftover:
    """Files that a library leaves when its ranks are ended, whoever starts them."""

    family: str
    works: tuple[str, ...]
    files: str
    reason: str


LEFTOVERS = (
    Leftover(
        "mpich-5",
        ("abort", "no finalize"),
        "/dev/shm/mpich_shm_",
        "The library removes its shared memory from /dev/shm only in MPI_Finalize",
    ),
)


@dataclass(frozen=True)
class Need:
    """A variable that a library needs for a work, whoever starts it."""

    family: str
    works: tuple[str, ...]
    variables: Mapping[str, str]
    reason: str
    places: tuple[str, ...] = field(default=())


NEEDS = (
    Need(
        "mpich-5",
        ("spawn", "spawn multiple"),
        {"UCX_LOG_LEVEL": "error"},
        "UCX warns on stdout of requests that MPICH did not release",
    ),
    Need("mpich-4", ("publish",), {"MPIR_CVAR_CH4_NETMOD": "ofi"}, UCX_PORTS),
    Need("mpich-5", ("publish",), {"MPIR_CVAR_CH4_NETMOD": "ofi"}, UCX_PORTS),
    Need("impi", ("spawn", "spawn multiple", "publish"), {"I_MPI_SPAWN": "on"}, "Intel's manual requires it"),
    Need(
        "openmpi-5",
        ("spawn", "spawn multiple"),
        {"OMPI_MCA_coll": "^han"},
        "on two nodes with one host name, the component han computes wrong sums or hangs after a merge",
        (TWO_LOCAL.name,),
    ),
)


def limit_of(family: str, work: str, place: Place) -> Limit | None:
    """Return the limit that a case meets."""
    hosts = len(place.nodes) if place.remote else 1
    for limit in LIMITS:
        if limit.family == family and work in limit.works and place.slots >= limit.ranks and hosts >= limit.hosts:
            return limit
    return None


def leftover_of(family: str, work: str) -> Leftover | None:
    """Return what a case leaves."""
    return next((found for found in LEFTOVERS if found.family == family and work in found.works), None)


def needs_of(family: str, work: str, place: Place) -> list[Need]:
    """Return what a case needs."""
    return [
        need
        for need in NEEDS
        if need.family == family and work in (need.works or (work,)) and place.name in (need.places or (place.name,))
    ]
