"""Roles and templates: which programs form a world, the order of their start, and what fills in a template."""

from __future__ import annotations

import pytest

from mpilaunch.errors import UsageError
from mpilaunch.job.preparation.before_launch import environment_before_launch
from mpilaunch.job.roles import check_roles, followers, parse_after, served
from mpilaunch.job.spec import App
from mpilaunch.job.worlds import World, first_worlds, spawned_world
from tests.support.command_line import job_of


def app(role: str, *after: str, **members: object) -> App:
    return App(("prog",), role=role, after=parse_after(after), **members)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", ["server", "server:", ":80", "server:0", "server:65536", "server:http", "server:-1", "a:080000"]
)
def test_a_condition_is_a_role_and_a_port(value: str) -> None:
    with pytest.raises(UsageError, match=rf"'{value}' is not ROLE:PORT"):
        parse_after([value])


@pytest.mark.parametrize(
    ("apps", "message"),
    [
        ([app("1a"), app("b")], "'1a' is not a name"),
        ([app("a.b"), app("b")], "'a.b' is not a name"),
        ([app("a"), app("b"), app("a")], "--role a is given twice"),
        ([app(""), app("b"), app("")], "programs without --role stand in two places"),
        ([app("a", "a:80"), app("b")], "the role 'a' waits for itself"),
        ([app("", "a:80")], "there is no other role 'a'"),
        ([app("server"), app("", "serve:80")], "there is no other role 'serve'; did you mean server"),
        ([app("a", "b:80"), app("b", "a:80"), app("c")], "the roles 'a', 'b' wait for each other"),
        ([app("a", "b:80"), app("b", "c:80"), app("c", "a:80")], "the roles 'a', 'b', 'c' wait for each other"),
    ],
)
def test_roles_that_cannot_start_are_an_error(apps: list[App], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_roles(apps)


@pytest.mark.parametrize(
    "apps",
    [
        [app("")],
        [app(""), app("")],
        [app("a"), app("a"), app("b", "a:80")],
        [app("a", "b:1"), app("b", "c:1", "d:2"), app("c"), app("d")],
        [app("server"), app("", "server:80"), app("")],
    ],
)
def test_roles_that_can_start(apps: list[App]) -> None:
    check_roles(apps)


@pytest.mark.parametrize(
    ("apps", "message"),
    [
        ([app("a", ends_with="b")], "there is no other role 'b'"),
        ([app("a", ends_with="a"), app("b")], "there is no other role 'a'"),
        ([app("server"), app("b", ends_with="serve")], "there is no other role 'serve'; did you mean server"),
        ([app("a", ends_with="b"), app("b", ends_with="a")], "no program is left to wait for"),
    ],
)
def test_a_role_that_a_program_ends_with_is_another(apps: list[App], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_roles(apps)


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("-np 1 a : -np 2 b", set()),
        ("--role a -np 1 a : --role b -np 2 --after a:80 b", {0}),
        ("--role a -np 1 a : --role b -np 2 --ends-with a b", {1, 2}),
        ("--role a -np 1 a : --role a -np 1 --ends-with b x : --role b -np 1 b : --role c -np 1 --after b:1 c", {1, 2}),
    ],
)
def test_who_ends_with_others(line: str, ranks: set[int]) -> None:
    assert followers(first_worlds(job_of(f"-H local:8 {line}"))) == ranks


def drawn(world: World) -> str:
    """Return the role and the first rank of a world, then each rank as number:node/local rank,program."""
    ranks = (f"{place.rank}:{place.node}/{place.local_rank},{place.app}" for place in world.job_map.placements)
    return f"{world.role or '-'} {world.first} {' '.join(ranks)}"


# Worlds


@pytest.mark.parametrize(
    ("line", "worlds"),
    [
        ("-np 2 -H a:2 ./x", ["- 0 0:0/0,0 1:0/1,0"]),
        ("-H a:2,b:2 -np 1 ./x : -np 2 ./y", ["- 0 0:0/0,0 1:0/1,1 2:1/0,1"]),
        ("-H a:2,b:2 --role s -np 1 ./x : --role w -np 3 ./y", ["s 0 0:0/0,0", "w 1 0:0/0,0 1:1/0,0 2:1/1,0"]),
        (
            "-H a:2,b:2 --role s -np 1 ./x : --role s -np 1 ./y : --after s:80 -np 1 ./z : -np 1 ./z",
            ["s 0 0:0/0,0 1:0/1,1", "- 2 0:1/0,0 1:1/1,1"],
        ),
    ],
)
def test_each_role_has_ranks_of_its_own(line: str, worlds: list[str]) -> None:
    spec = job_of(line)
    made = first_worlds(spec)
    assert [drawn(world) for world in made] == worlds
    assert len({world.name for world in made}) == len({world.namespace for world in made}) == len(made)


def test_the_environment_is_that_of_the_role() -> None:
    spec = job_of("-H a:2,b:2 --master-port 5000 --role s -np 1 ./x : --role w --after s:80 -np 3 ./y")
    given = [environment_before_launch(spec, rank) for rank in range(4)]
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK ROLE_NAME MASTER_PORT PMI_RANK PMI_SIZE"
    assert [" ".join(one[name] for name in names.split()) for one in given] == [
        "0 1 0 1 0 s 5000 0 1",
        "0 3 0 1 0 w 5002 0 3",
        "1 3 0 2 1 w 5002 1 3",
        "2 3 1 2 1 w 5002 2 3",
    ]


def test_roles_that_others_wait_for_serve_with_what_they_spawn() -> None:
    spec = job_of("-H a:4 --role s -np 1 ./x : --role w --after s:80 -np 1 ./y")
    worlds = first_worlds(spec)
    plain = {"program": ["child"], "count": 1, "environment": {}, "info": {}}
    for parent in list(worlds):
        ask = {"world": parent.name, "rank": 0, "apps": [plain], "pairs": {}}
        worlds.append(spawned_world(spec, worlds, ask, ()))
    assert served(worlds) == {worlds[0].name, worlds[2].name}
    assert served(first_worlds(job_of("-H a:4 --role s -np 1 ./x : --role w -np 1 ./y"))) == set()
