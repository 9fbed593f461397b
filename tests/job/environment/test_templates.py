"""Templates in arguments and variables: their fields, and their errors."""

from __future__ import annotations

import shlex

import pytest

from mpilaunch.errors import UsageError
from mpilaunch.job.environment.templates import programs_before_launch, variable_templates
from mpilaunch.job.output.tags import parse_template
from mpilaunch.job.preparation.before_launch import environment_before_launch
from tests.support.command_line import job_of


def filled(line: str) -> list[str]:
    return [shlex.join(words) for _, words in programs_before_launch(job_of(line))]


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
    spec = job_of("--template -H a,b -x A={rank}@{host} -x 'B={{}}' -x C=c -np 2 ./x")
    given = [environment_before_launch(spec, rank) for rank in (0, 1)]
    assert [(one["A"], one["B"], one["C"]) for one in given] == [("0@a", "{}", "c"), ("1@b", "{}", "c")]
    assert job_of("-H a -x A={rank} ./x").environment["A"] == "{rank}"
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
        job_of(line)
    assert caught.value.reference == "tag-format" and caught.value.message.startswith(message)


def test_a_partly_filled_template_keeps_the_width_and_the_braces() -> None:
    text = parse_template("{{{rank:>4}|{host:<3}}}\n", "--template").fill({"host": "{a"})
    assert text.format(rank=7) == "{   7|{a }\n"
