"""Worlds: the ranks that share one MPI_COMM_WORLD. A job begins with one, and each MPI_Comm_spawn adds one.

Pure, except for random names. A rank has a number in its world, from 0, and a number in the job, where spawned ranks follow the
existing ones.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.allocation import MAX_SLOTS, Allocation
from mpilaunch.job.spec import App, JobSpec
from mpilaunch.placement.mapping import JobMap, Placement

MAX_SPAWNED = 100_000
"""Most ranks in one MPI_Comm_spawn."""


class World(NamedTuple):
    """One world.

    Attributes:
        number: its index among the worlds of the job; 0 is the initial world.
        name: unique in the job; also names its key-value space in PMI; not secret.
        first: the number in the job of its rank 0.
        apps, job_map: its programs and the placement of its ranks; placements use rank numbers of this world.
        namespace: its name in PMIx. libpmix accepts any process that knows it as a rank of the world, so only daemons and ranks
            receive it, and it never appears in a file name, an argument or a message to the user.
        parent, pairs: name of the world that spawned it, "" for none; the initial contents of its key-value space.
    """

    number: int
    name: str
    first: int
    apps: tuple[App, ...]
    job_map: JobMap
    namespace: str
    parent: str = ""
    pairs: Mapping[str, str] = {}

    @property
    def size(self) -> int:
        return len(self.job_map.placements)


def first_world(job: JobSpec) -> World:
    return World(0, job.job_id, 0, job.apps, job.job_map, _namespace())


def spawned_world(job: JobSpec, worlds: Sequence[World], request: Mapping[str, Any], living: Iterable[Placement]) -> World:
    """Return the world that MPI_Comm_spawn creates; raises LaunchError if it cannot be placed.

    Its ranks take free slots in node order first, then the slots with the fewest ranks: a spawn is never refused for lack of
    slots. `request` is an `ask` message for `spawn` (docs/wire.md), `living` are the placements of ranks that have not ended.
    """
    apps = [_app(app) for app in request["apps"]]
    counts = [int(app["count"]) for app in request["apps"]]
    if not apps or min(counts) < 0 or not 1 <= sum(counts) <= MAX_SPAWNED:
        hint = f"1 to {MAX_SPAWNED:,} can be spawned at once"
        raise LaunchError("spawn", f"MPI_Comm_spawn of {sum(counts):,} ranks", hint=hint)
    number, first = worlds[-1].number + 1, worlds[-1].first + worlds[-1].size
    if first + sum(counts) > MAX_SLOTS:
        raise LaunchError("spawn", f"MPI_Comm_spawn of {sum(counts):,} ranks: a job has at most {MAX_SLOTS:,}")
    load = Counter((place.node, place.slot) for place in living)
    local: dict[int, int] = defaultdict(int)
    placements: list[Placement] = []
    for app, (count, requested) in enumerate(zip(counts, request["apps"], strict=True)):
        for node, slot in _take_slots(job.allocation, load, count, requested.get("info", {}).get("host") or ""):
            placements.append(Placement(len(placements), node, local[node], slot, app))
            local[node] += 1
    job_map = JobMap(tuple(placements), tuple(sorted(local)))
    name = f"{job.job_id}.{number}"
    return World(number, name, first, tuple(apps), job_map, _namespace(), request["world"], dict(request["pairs"]))


def _namespace() -> str:
    """Return an unguessable name: libpmix accepts any process that knows it."""
    return os.urandom(16).hex()


def _app(request: Mapping[str, Any]) -> App:
    """Return the program that a rank asks for; raises LaunchError if Linux cannot execute it with these words."""
    program = tuple(str(word) for word in request["program"])
    environment = {str(name): str(value) for name, value in request["environment"].items()}
    directory = request["info"].get("wdir")
    words = [*program, *environment, *environment.values(), directory or ""]
    if not program or not program[0] or any("\0" in word for word in words):
        raise LaunchError("spawn", "MPI_Comm_spawn with an empty program name or a zero byte")
    return App(program, environment, directory)


def _take_slots(allocation: Allocation, load: Counter[tuple[int, int]], count: int, hosts: str) -> list[tuple[int, int]]:
    """Return the node and slot of each of `count` ranks, and add them to the load."""
    names = set(filter(None, hosts.split(",")))
    nodes = [node for node in allocation.nodes if node.slots and (not names or node.name in names)]
    if not nodes:
        known = ", ".join(node.name for node in allocation.nodes)
        raise LaunchError("spawn", f"MPI_Comm_spawn on {hosts or 'no node'}: the job has {known}")
    heap = [(load[node.index, slot], node.index, slot) for node in nodes for slot in range(len(node.slots))]
    heapq.heapify(heap)
    taken = []
    for _ in range(count):
        ranks, node, slot = heap[0]
        heapq.heapreplace(heap, (ranks + 1, node, slot))
        load[node, slot] += 1
        taken.append((node, slot))
    return taken
