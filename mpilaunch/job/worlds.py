"""Worlds: the ranks that share one MPI_COMM_WORLD. A job begins with one, and each MPI_Comm_spawn adds one.

Pure, but for names that nobody can guess. Ranks have a number in their world, from 0, and one in the job, where spawned ones
follow those that were there before.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.allocation import Allocation
from mpilaunch.job.spec import App, JobSpec
from mpilaunch.placement.mapping import JobMap, Placement
from mpilaunch.text import plural

MAX_SPAWNED = 100_000
"""Ranks that one MPI_Comm_spawn may ask for."""
MAX_RANKS = 1 << 20
"""Ranks of a job with all its worlds."""


class World(NamedTuple):
    """One world.

    Attributes:
        number: place among the worlds of the job; 0 is the one it began with.
        name: no other world's in this job, and of its key-value space in PMI; no secret.
        first: the number in the job of its rank 0.
        apps, job_map: its programs, and where its ranks are; placements have numbers of this world.
        parent: name of the world that spawned it, "" for none.
        pairs: what its key-value space begins with.
        namespace: its name in PMIx. libpmix takes whoever knows it for one of its ranks, so it is told to daemons and ranks
            only, and stands in no file name, argument or message to the user.
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
        """How many ranks it has."""
        return len(self.job_map.placements)


def first_world(job: JobSpec) -> World:
    """Return the world that the job begins with."""
    return World(0, job.job_id, 0, job.apps, job.job_map, _namespace())


def spawned_world(job: JobSpec, worlds: Sequence[World], asked: Mapping[str, Any], living: Iterable[Placement]) -> World:
    """Return the world that an `ask` for a spawn wants (docs/wire.md); raises LaunchError when it cannot be.

    Its ranks take free slots in node order first, then go where the fewest ranks run per slot: a program that asks for a
    number of ranks gets it.

    Args:
        living: where the ranks of the job are that have not ended.
    """
    apps = [_app(app) for app in asked["apps"]]
    counts = [int(app["count"]) for app in asked["apps"]]
    if not apps or min(counts) < 0 or not 1 <= sum(counts) <= MAX_SPAWNED:
        hint = f"1 to {MAX_SPAWNED:,} can be spawned at once"
        raise LaunchError("spawn", f"MPI_Comm_spawn of {sum(counts):,} ranks", hint=hint)
    if worlds[-1].first + worlds[-1].size + sum(counts) > MAX_RANKS:
        raise LaunchError("spawn", f"MPI_Comm_spawn of {plural(sum(counts), 'rank')}: a job has at most {MAX_RANKS:,}")
    for program in apps:
        _check_words(program)
    load = Counter((place.node, place.slot) for place in living)
    local: dict[int, int] = defaultdict(int)
    placements: list[Placement] = []
    for app, (count, wanted) in enumerate(zip(counts, asked["apps"], strict=True)):
        for node, slot in _take_slots(job.allocation, load, count, wanted.get("info", {}).get("host") or ""):
            placements.append(Placement(len(placements), node, local[node], slot, app))
            local[node] += 1
    job_map = JobMap(tuple(placements), tuple(sorted(local)))
    last = worlds[-1]
    name = f"{job.job_id}.{last.number + 1}"
    number, first = last.number + 1, last.first + last.size
    return World(number, name, first, tuple(apps), job_map, _namespace(), asked["world"], dict(asked["pairs"]))


def _namespace() -> str:
    """Return a name that nobody can guess: whoever knows it counts as a rank of the world."""
    return os.urandom(16).hex()


def _app(asked: Mapping[str, Any]) -> App:
    program = tuple(str(word) for word in asked["program"])
    return App(program, {str(name): str(value) for name, value in asked["environment"].items()}, asked["info"].get("wdir"))


def _check_words(app: App) -> None:
    """Raise LaunchError for what Linux cannot hand to a program; the words are those of a rank."""
    words = [*app.program, *app.environment, *app.environment.values(), app.wdir or ""]
    if not app.program or not app.program[0] or any("\0" in word for word in words):
        raise LaunchError("spawn", "MPI_Comm_spawn of a program without a name, or with a zero byte")


def _take_slots(allocation: Allocation, load: Counter[tuple[int, int]], count: int, hosts: str) -> list[tuple[int, int]]:
    """Return node and slot of each of `count` ranks, and add them to the load."""
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
