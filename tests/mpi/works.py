"""What the programs of tests/programs/ are asked to do, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.mpi.places import PLACES, Place

Words = tuple[str, ...]
HEAD = "head"
"""The host name of the machine that the launcher runs on."""


@dataclass(frozen=True)
class Work:
    """One program, with what it is told.

    Attributes:
        name: in the tables.
        apps: the programs of the job: how many ranks, and their words.
        lines: what all ranks print.
        places: where it is done.
        quick: where `make test-slow` does it with a library from PyPI.
        code: of the launcher.
        languages: that it is written in.
        own: the launchers of the families agree with mpilaunch about it.
        universe: the last word of each program is the size of the universe, -1 for none.
        network: bytes that every host must receive by its network, 0 for any.
    """

    name: str
    apps: Callable[[Place], list[tuple[int, Words]]]
    lines: Callable[[Place], list[str]]
    places: tuple[str, ...]
    quick: tuple[str, ...] = ()
    code: int = 0
    languages: tuple[str, ...] = ("C", "mpi4py")
    own: bool = True
    universe: bool = False
    network: int = 0


def _all(*words: str) -> Callable[[Place], list[tuple[int, Words]]]:
    """Return the apps of a job with one program on all slots, to which `{slots}` is their number and `{wrong}` is another."""
    return lambda place: [(place.slots, tuple(word.format(slots=place.slots, wrong=place.slots + 1) for word in words))]


def _nothing(place: Place) -> list[str]:
    return []


def _ring(place: Place) -> list[str]:
    return [
        f"{rank} of {place.slots}, {local} of {len(ranks)} on {host}"
        for host, ranks in place.layout(HEAD)
        for local, rank in enumerate(ranks)
    ]


def _allreduce(place: Place) -> list[str]:
    return [f"{place.slots} ranks agree"]


def _appnum_apps(place: Place) -> list[tuple[int, Words]]:
    return [(place.slots // 2, ("appnum", str(place.slots), app)) for app in ("0", "1")]


def _appnum(place: Place) -> list[str]:
    return [f"{rank} of {place.slots} is of program {rank // (place.slots // 2)}" for rank in range(place.slots)]


def _spawn_apps(how: str) -> Callable[[Place], list[tuple[int, Words]]]:
    """Half of the slots start programs on the other half."""

    def apps(place: Place) -> list[tuple[int, Words]]:
        half = place.slots // 2
        return [(half, ("spawn", how, str(half), str(half), str(place.slots)))]

    return apps


def _spawn(how: str) -> Callable[[Place], list[str]]:
    def lines(place: Place) -> list[str]:
        half = place.slots // 2
        last = [1 if how == "multiple" and rank == half - 1 else 0 for rank in range(half)]
        parents = [f"parent {rank} of {half}, with {half} children" for rank in range(half)]
        return parents + [f"child {rank} of {half}, of program {last[rank]}" for rank in range(half)]

    return lines


def _publish(place: Place) -> list[str]:
    half = place.slots // 2
    return [f"{rank} of {place.slots}, of the {'servers' if rank < half else 'clients'}" for rank in range(place.slots)]


_SPAWN_PLACES = ("4", "8", "2 local nodes x 2", "2 hosts x 2", "4 hosts x 1")
_QUICK = ("4", "2 local nodes x 2", "2 hosts x 2")

WORKS = (
    Work("ring", _all("ring", "{slots}"), _ring, tuple(PLACES), _QUICK, network=1 << 20),
    Work("wrong size", _all("ring", "{wrong}"), _nothing, ("4", "2 hosts x 1"), ("4",), code=9),
    Work("all-reduce", _all("allreduce", "{slots}"), _allreduce, ("8", "2 hosts x 2"), ("8",)),
    Work("spawn", _spawn_apps("one"), _spawn("one"), _SPAWN_PLACES, _QUICK, universe=True),
    Work("spawn multiple", _spawn_apps("multiple"), _spawn("multiple"), _SPAWN_PLACES, _QUICK, universe=True),
    Work(
        "publish",
        _all("publish", "{slots}"),
        _publish,
        ("2", "4", "2 local nodes x 2", "2 hosts x 1", "2 hosts x 2"),
        _QUICK,
    ),
    Work("programs a : b", _appnum_apps, _appnum, ("4", "2 hosts x 2"), ("2 hosts x 2",)),
    Work("abort", _all("ends", "abort", "42"), _nothing, ("4", "2 hosts x 2"), ("2 hosts x 2",), code=42),
    # mpiexec.hydra ends such a job with code 0, or never.
    Work("no finalize", _all("ends", "no-finalize"), _nothing, ("4", "2 hosts x 2"), ("4",), code=1, own=False),
    Work(
        "no MPI_Init",
        _all("ends", "never-init"),
        _nothing,
        ("4", "2 hosts x 2"),
        languages=("C",),
    ),
)

