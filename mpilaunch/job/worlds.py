"""Worlds: the ranks that share one MPI_COMM_WORLD. A job begins with one, or one for each role; MPI_Comm_spawn adds one.

Pure, except for random names. A rank has a number in its world, from 0, and a number in the job, where spawned ranks follow the
existing ones.
"""

from __future__ import annotations

import heapq
import os
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.allocation import MAX_SLOTS, Allocation
from mpilaunch.job.spec import App, JobSpec
from mpilaunch.placement.mapping import JobMap, Placement
from mpilaunch.text import is_whole_number

MAX_SPAWNED = 100_000
"""Most ranks in one MPI_Comm_spawn."""

PORTS = 2
"""Ports of each world on the node of its rank 0: MASTER_PORT, and a second one beside it."""
_HOSTS = "the hosts of a job do not change; the key host selects among them"
_SLOTS = "spawned ranks take free slots in the order of the hosts; the key host selects hosts"
WITHOUT_EFFECT = {
    "arch": _SLOTS,
    "file": "mpilaunch reads no file of a program",
    **dict.fromkeys(("hostfile", "add-host", "add-hostfile"), _HOSTS),
    **dict.fromkeys(("map_by", "rank_by", "bind_to", "ppr", "mapper"), _SLOTS),
}
"""Info keys of the MPI standard, Open MPI and Hydra that spawned ranks are started without, and the reason."""


class World(NamedTuple):
    """One world.

    Attributes:
        number: its index among the worlds of the job, the initial ones first.
        name: unique in the job; also names its key-value space in PMI; not secret.
        first: the number of its rank 0 in the whole job.
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

    @property
    def role(self) -> str:
        return self.apps[0].role

    def master_port(self, first: int) -> int:
        """Return MASTER_PORT, given that of the job's first world."""
        return first + PORTS * self.number


def first_worlds(job: JobSpec) -> list[World]:
    """Return the worlds that a job begins with: one for each role, whose programs follow each other."""
    worlds: list[World] = []
    start, first = 0, job.first_rank
    for _, group in groupby(job.apps, key=lambda app: app.role):
        apps = tuple(group)
        job_map = job.job_map if len(apps) == len(job.apps) else _part(job.job_map, range(start, start + len(apps)))
        name = f"{job.job_id}.{len(worlds)}" if worlds else job.job_id
        worlds.append(World(len(worlds), name, first, apps, job_map, _namespace()))
        start, first = start + len(apps), first + worlds[-1].size
    return worlds


def _part(job_map: JobMap, apps: range) -> JobMap:
    """Return the map of some of the programs by itself: ranks, local ranks and programs are numbered from 0."""
    local: Counter[int] = Counter()
    placements: list[Placement] = []
    for place in job_map.placements:
        if place.app in apps:
            numbers = {"rank": len(placements), "local_rank": local[place.node], "app": place.app - apps.start}
            placements.append(place._replace(**numbers))
            local[place.node] += 1
    return JobMap(tuple(placements), tuple(sorted(local)))


def neighbours(job: JobSpec, world: World) -> JobMap:
    """Return the map of the ranks that start with a world and share its nodes: with roles all of the job's, by their
    numbers in the job, also for the only world of one machine's part of a job."""
    roles = any(app.role for app in job.apps)
    return job.global_map if job.part is not None or (roles and not world.parent) else world.job_map


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
        for node, slot in _take_slots(job.allocation, load, count, requested["info"]):
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
    directory, path = request["info"].get("wdir"), request["info"].get("path")
    words = [*program, *environment, *environment.values(), directory or "", path or ""]
    if not program or not program[0] or any("\0" in word for word in words):
        raise LaunchError("spawn", "MPI_Comm_spawn with an empty program name or a zero byte")
    return App(program, environment, directory, (("prepend", "PATH", path, ":"),) if path else ())


def _take_slots(
    allocation: Allocation, load: Counter[tuple[int, int]], count: int, info: Mapping[str, str | None]
) -> list[tuple[int, int]]:
    """Return the node and slot of each of `count` ranks, or fewer by the key `soft`, and add them to the load."""
    hosts = info.get("host") or info.get("hosts") or ""
    names = set(filter(None, hosts.split(",")))
    nodes = [node for node in allocation.nodes if node.slots and (not names or node.name in names)]
    if not nodes:
        known = ", ".join(node.name for node in allocation.nodes)
        raise LaunchError("spawn", f"MPI_Comm_spawn on {hosts or 'no node'}: the job has {known}")
    heap = [(load[node.index, slot], node.index, slot) for node in nodes for slot in range(len(node.slots))]
    if soft := info.get("soft"):
        count = _soft_count(soft, count, sum(not ranks for ranks, _, _ in heap))
    heapq.heapify(heap)
    taken = []
    for _ in range(count):
        ranks, node, slot = heap[0]
        heapq.heapreplace(heap, (ranks + 1, node, slot))
        load[node, slot] += 1
        taken.append((node, slot))
    return taken


def _soft_count(soft: str, most: int, free: int) -> int:
    """Return the largest number of ranks in `soft` that has free slots, else the smallest; raises LaunchError.

    `soft` has numbers, ranges first:last and ranges first:last:step, separated by commas (MPI 4.1, section 11.8.4). Numbers
    from 1 to `most` count.
    """
    fitting: list[int] = []
    allowed: list[int] = []
    for item in soft.split(","):
        words = item.split(":")
        if len(words) > 3 or not all(is_whole_number(word.strip().removeprefix("-"), 9) for word in words):
            raise LaunchError("spawn", f"MPI_Comm_spawn with soft={soft[:80]}", hint="use N, FIRST:LAST or FIRST:LAST:STEP")
        first, last = int(words[0]), int(words[1 if words[1:] else 0])
        step = int(words[2]) if words[2:] else 1
        numbers = range(first, last + (1 if step > 0 else -1), step or 1)[:: 1 if step > 0 else -1]
        low, high = bisect_left(numbers, 1), bisect_right(numbers, most)
        fitting += numbers[low : bisect_right(numbers, min(free, most))][-1:]
        allowed += numbers[low:high][:1]
    if not allowed:
        raise LaunchError("spawn", f"MPI_Comm_spawn of at most {most:,} ranks: soft={soft[:80]} has no such number")
    return max(fitting) if fitting else min(allowed)
