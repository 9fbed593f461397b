"""Roles and templates: which programs form a world, the order of their start, and what fills in a template."""

from __future__ import annotations

import shlex

import pytest

from mpilaunch.cli.job.make import make_job
from mpilaunch.errors import UsageError
from mpilaunch.job.environment.templates import check_templates, programs_before_launch, variable_templates
from mpilaunch.job.output.tags import parse_template
from mpilaunch.job.preparation.before_launch import environment_before_launch
from mpilaunch.job.preparation.messages import common_preparation, preparations
from mpilaunch.job.preparation.world_facts import WorldFacts
from mpilaunch.job.roles import check_roles, parse_after, served
from mpilaunch.job.spec import App, JobSpec
from mpilaunch.job.worlds import World, first_worlds, spawned_world
from tests.support.command_line import request


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


def job(line: str) -> JobSpec:
    """Return the job of a whole command line."""
    asked = request(shlex.split(line))
    return make_job(asked.settings, asked.sections, asked.environ)


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
    spec = job(line)
    made = first_worlds(spec)
    assert [drawn(world) for world in made] == worlds
    assert len({world.name for world in made}) == len({world.namespace for world in made}) == len(made)


def test_the_environment_is_that_of_the_role() -> None:
    spec = job("-H a:2,b:2 --master-port 5000 --role s -np 1 ./x : --role w --after s:80 -np 3 ./y")
    given = [environment_before_launch(spec, rank) for rank in range(4)]
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK ROLE_NAME MASTER_PORT PMI_RANK PMI_SIZE"
    assert [" ".join(one[name] for name in names.split()) for one in given] == [
        "0 1 0 1 0 s 5000 0 1",
        "0 3 0 1 0 w 5002 0 3",
        "1 3 0 2 1 w 5002 1 3",
        "2 3 1 2 1 w 5002 2 3",
    ]


def test_roles_that_others_wait_for_serve_with_what_they_spawn() -> None:
    spec = job("-H a:4 --role s -np 1 ./x : --role w --after s:80 -np 1 ./y")
    worlds = first_worlds(spec)
    plain = {"program": ["child"], "count": 1, "environment": {}, "info": {}}
    for parent in list(worlds):
        ask = {"world": parent.name, "rank": 0, "apps": [plain], "pairs": {}}
        worlds.append(spawned_world(spec, worlds, ask, ()))
    assert served(worlds) == {worlds[0].name, worlds[2].name}
    assert served(first_worlds(job("-H a:4 --role s -np 1 ./x : --role w -np 1 ./y"))) == set()


# Templates


def filled(line: str) -> list[str]:
    return [shlex.join(words) for _, words in programs_before_launch(job(line))]


def test_the_fields_of_each_rank() -> None:
    line = "--template -H a:1,b:2 --master-addr m --master-port 7 ./x {rank}/{world_size} {local_rank}/{nnodes}/{node_rank} "
    assert filled(line + "{host:>3}={master_addr}:{master_port} {{{rank:02}}} '{{}}'".replace(":02", ":2")) == [
        "./x 0/3 0/2/0 '  a=m:7' '{ 0}' '{}'",
        "./x 1/3 0/2/1 '  b=m:7' '{ 1}' '{}'",
        "./x 2/3 1/2/1 '  b=m:7' '{ 2}' '{}'",
    ]


def test_what_a_variable_overrides_and_the_name_of_the_program() -> None:
    assert filled("--template -x MASTER_ADDR=there -x A={rank} -H a ./{x} {master_addr}") == ["'./{x}' there"]
    assert filled("-H a ./x {rank} {{}} {") == ["./x '{rank}' '{{}}' '{'"]


def test_variables_are_templates_too() -> None:
    spec = job("--template -H a,b -x A={rank}@{host} -x 'B={{}}' -x C=c -np 2 ./x")
    given = [environment_before_launch(spec, rank) for rank in (0, 1)]
    assert [(one["A"], one["B"], one["C"]) for one in given] == [("0@a", "{}", "c"), ("1@b", "{}", "c")]
    assert job("-H a -x A={rank} ./x").environment["A"] == "{rank}"
    assert variable_templates(["A={rank}", "A=1", "B", "C=}}", "D={host}", "D={rank}"]) == {"C": "}}", "D": "{rank}"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--template ./x {ran}", "--template: unknown field '{ran}'; did you mean rank?"),
        ("--template ./x a {", "--template: column 1 of '{': unmatched '{'"),
        ("--template ./x {rank:x}", "--template: '{rank:x}': 'x' is not a width"),
        ("--template ./x {}", "--template: unknown field '{}'"),
        ("--template ./x {time}", "--template: unknown field '{time}'"),
        ("--template ./x {rank.real}", "--template: unknown field '{rank.real}'"),
        ("--template -x A={stream} ./x", "--template: unknown field '{stream}'"),
        ("--template -np 1 --role s ./x : -np 1 --role t ./y {u.master_addr}", "--template: unknown field '{u.master_addr}'"),
    ],
)
def test_a_template_with_an_error(line: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        job(line)
    assert caught.value.reference == "tag-format" and caught.value.message.startswith(message)


def test_only_what_differs_between_ranks_is_sent_for_each() -> None:
    """The arguments travel once for all nodes; a rank gets the four fields in which it differs."""
    spec = job("--template -H a,b --role s -np 1 ./x : --role w --after s:80 -np 1 ./y {s.master_addr}:{rank} {{{world_size}")
    world = first_worlds(spec)[1]
    known = WorldFacts("m", "1", "2", roles={"s.master_addr": "10.0.0.1", "s.master_port": "80"})
    shared = common_preparation(spec, world, known, 1)
    assert shared["apps"][0]["program"] == ["./y", "10.0.0.1:{rank:}", "{{1"]
    ((_, message),) = preparations(spec, world, known, {})
    assert message["ranks"][0]["fields"] == {"rank": 0, "local_rank": 0, "node_rank": 0, "host": "b"}
    (_, plain) = next(preparations(job("-H a ./x"), first_worlds(job("-H a ./x"))[0], WorldFacts("m", "1", "2"), {}))
    assert plain["ranks"][0]["fields"] is None


def test_a_partly_filled_template_keeps_the_width_and_the_braces() -> None:
    text = parse_template("{{{rank:>4}|{host:<3}}}\n", "--template").fill({"host": "{a"})
    assert text.format(rank=7) == "{   7|{a }\n"


def test_a_world_that_mpi_spawns_is_no_template() -> None:
    spec = job("--template -H a:2 -x A={rank} -np 1 ./x {rank}")
    child = {"program": ["c", "{rank}"], "count": 1, "environment": {}, "info": {}}
    ask = {"world": spec.job_id, "rank": 0, "apps": [child], "pairs": {}}
    world = spawned_world(spec, first_worlds(spec), ask, ())
    assert common_preparation(spec, world, WorldFacts("m", "1", "2"), 1)["apps"][0]["program"] == ["c", "{rank}"]
    check_templates(world.apps)
