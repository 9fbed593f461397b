"""Worlds: where spawned ranks go, and which numbers they get."""

from __future__ import annotations

from typing import Any

import pytest

from mpilaunch.errors import LaunchError
from mpilaunch.hosts.allocation import Allocation, Node, Slot
from mpilaunch.job.spec import App, JobSpec
from mpilaunch.job.worlds import World, first_worlds, spawned_world
from mpilaunch.placement.mapping import JobMap, Placement


def job(*slots: int, ranks: int = 1) -> JobSpec:
    """Return a job on nodes a, b, c, ... with so many slots, its ranks in the first slots."""
    nodes = tuple(Node(index, "abcdef"[index], (Slot(),) * count, "local") for index, count in enumerate(slots))
    free = [(node.index, slot) for node in nodes for slot in range(len(node.slots))]
    placements = tuple(Placement(rank, node, slot, slot) for rank, (node, slot) in enumerate(free[:ranks]))
    job_map = JobMap(placements, tuple(sorted({place.node for place in placements})))
    return JobSpec("id", (App(("parent",)),), Allocation(nodes, "test"), job_map)


def asked(*apps: dict[str, Any], pairs: dict[str, str] | None = None) -> dict[str, Any]:
    """Return what a daemon asks for."""
    plain = {"program": ["child"], "count": 1, "environment": {}, "info": {}}
    return {"world": "id", "rank": 0, "apps": [{**plain, **app} for app in apps], "pairs": pairs or {}}


def spawn(spec: JobSpec, *apps: dict[str, Any]) -> World:
    """Return the world that the first ranks of a job spawn."""
    return spawned_world(spec, [first_worlds(spec)[0]], asked(*apps), spec.job_map.placements)


def places(world: World) -> list[tuple[int, int]]:
    """Return node and slot of each rank."""
    return [(place.node, place.slot) for place in world.job_map.placements]


def test_free_slots_come_first_in_node_order() -> None:
    world = spawn(job(2, 2), {"count": 3})
    assert places(world) == [(0, 1), (1, 0), (1, 1)]
    assert world.job_map.nodes == (0, 1)
    assert [place.local_rank for place in world.job_map.placements] == [0, 0, 1]


def test_a_program_that_asks_for_more_than_is_free_gets_it() -> None:
    assert places(spawn(job(1, 1, ranks=2), {"count": 3})) == [(0, 0), (1, 0), (0, 0)]


def test_ranks_that_have_ended_leave_their_slots() -> None:
    spec = job(1, 1, ranks=2)
    world = spawned_world(spec, [first_worlds(spec)[0]], asked({"count": 1}), spec.job_map.placements[:1])
    assert places(world) == [(1, 0)]


def test_numbers_continue_where_the_last_world_ends() -> None:
    spec = job(4, ranks=3)
    first = first_worlds(spec)[0]
    assert (first.number, first.name, first.first, first.size, first.parent) == (0, "id", 0, 3, "")
    second = spawned_world(spec, [first], asked({"count": 2}, pairs={"k": "v"}), ())
    assert (second.number, second.name, second.first, second.size, second.parent) == (1, "id.1", 3, 2, "id")
    assert second.pairs == {"k": "v"}
    third = spawned_world(spec, [first, second], asked({"count": 1}), ())
    assert (third.name, third.first) == ("id.2", 5)


def test_several_programs_and_their_info() -> None:
    apps: list[dict[str, Any]] = [
        {"count": 2, "info": {"wdir": "/tmp", "unknown": "x"}, "environment": {"A": "1"}},
        {"program": ["other", "x"], "info": {"host": "b"}},
    ]
    world = spawn(job(2, 2), *apps)
    assert world.apps == (App(("child",), {"A": "1"}, "/tmp"), App(("other", "x")))
    assert [place.app for place in world.job_map.placements] == [0, 0, 1]
    assert world.job_map.placements[2].node == 1


def test_a_path_is_searched_first() -> None:
    assert spawn(job(1), {"info": {"path": "/a:/b"}}).apps == (App(("child",), edits=(("prepend", "PATH", "/a:/b", ":"),)),)


@pytest.mark.parametrize(
    ("soft", "count", "ranks"),
    [
        ("2", 2, 2),
        ("1:3", 4, 3),
        ("4,2", 4, 4),
        ("1:8", 8, 5),  # of which 5 slots are free
        ("2:8:2", 7, 4),
        ("8:2:-3", 8, 5),
        ("6,7:9", 8, 6),  # none has free slots: the smallest
        ("0:1", 3, 1),
        ("-3:2, 9", 4, 2),
    ],
)
def test_a_soft_count(soft: str, count: int, ranks: int) -> None:
    assert spawn(job(3, 3), {"count": count, "info": {"soft": soft}}).size == ranks


def test_a_soft_count_is_that_of_its_hosts_and_program() -> None:
    soft = {"count": 4, "info": {"soft": "1:4", "host": "b"}}
    world = spawn(job(3, 3), soft, {"count": 2})
    assert [place.node for place in world.job_map.placements] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("apps", "words"),
    [
        ([{"count": 2, "info": {"soft": "3:9"}}], "at most 2 ranks: soft=3:9 has no such number"),
        ([{"info": {"soft": "1:999999999:999999999,0,9:1:1"}, "count": 0}, {"info": {"soft": "0"}}], "soft=1:99"),
        *(([{"info": {"soft": soft}}], "MPI_Comm_spawn with soft=") for soft in ("x", "1:", "1:2:3:4", ",", "9" * 10)),
        ([{"count": 0}], "MPI_Comm_spawn of 0 ranks"),
        ([{"count": -1}], "MPI_Comm_spawn of -1 ranks"),
        ([{"count": 1_000_000}], "MPI_Comm_spawn of 1,000,000 ranks"),
        ([{"info": {"host": "x,y"}}], "MPI_Comm_spawn on x,y: the job has a, b"),
    ],
)
def test_what_cannot_be(apps: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        spawn(job(1, 1), *apps)
