"""The plan: golden text and data, and what is masked in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mpilaunch.hosts.allocation import Allocation, Node, Slot
from mpilaunch.job.output.masking import MASKED
from mpilaunch.job.plan import (
    map_as_text,
    plan_as_json,
    plan_as_text,
    settings_as_text,
)
from mpilaunch.job.spec import App, JobSpec
from mpilaunch.placement.mapping import MappingPolicy, map_ranks
from tests.support import goldens
from tests.support.command_line import request, settings


def job(*nodes: Node, ranks: int | None = None, source: str = "hosts.txt", **fields: Any) -> JobSpec:
    allocation = Allocation(nodes, source)
    job_map = map_ranks(allocation, MappingPolicy(ranks))
    return JobSpec("00c0ffee00c0ffee", (App(("python", "train.py", "--name", "a b")),), allocation, job_map, **fields)


def node(index: int, name: str, slots: int, **fields: Any) -> Node:
    return Node(index, name, (Slot(),) * slots, "ssh", origin=f"hosts.txt:{index + 1}", **fields)


JOBS = {
    "one-rank": job(Node(0, "localhost", (Slot(),), "local", origin="this machine"), source="this machine"),
    "unused-node": job(node(0, "n1", 8), node(1, "login.example.org", 4, user="me", port=2222), node(2, "n3", 4), ranks=10),
    "gpus": job(
        Node(0, "gpu1", (Slot(("0", "1"), (0, 1, 2, 3)), Slot(("2", "3"), (4, 5, 7))), "ssh", max_slots=2, origin="m.yaml:1"),
        Node(1, "cpu1", (Slot((),), Slot()), "tsh ssh {host} {command}", origin="hosts.txt:2"),
        environment={"NCCL_DEBUG": "INFO", "MY_TOKEN": "s3cret"},
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_plan_for_people(name: str) -> None:
    goldens.check(f"plans/{name}.txt", plan_as_text(JOBS[name]) + "\n")


@pytest.mark.parametrize("name", JOBS)
def test_the_plan_for_programs(name: str) -> None:
    plan = plan_as_json(JOBS[name])
    goldens.check(f"plans/{name}.json", json.dumps(plan, indent=1) + "\n")
    assert "s3cret" not in json.dumps(plan)


def test_the_map_is_the_head_of_the_plan() -> None:
    assert plan_as_text(JOBS["gpus"]).startswith(map_as_text(JOBS["gpus"]))


def test_options_are_in_the_plan_when_asked() -> None:
    options = plan_as_json(JOBS["gpus"], settings("-x A_KEY=s3cret -x B=c -x D_TOKEN"))["options"]
    assert options["export"] == {"value": (f"A_KEY={MASKED}", "B=c", "D_TOKEN"), "provenance": "--export"}
    assert options["fanout"] == {"value": 64, "provenance": "default"}


def test_plan_and_report_mask_the_arguments_unless_asked() -> None:
    one = JOBS["one-rank"]
    app = one.apps[0]._replace(program=("train.py", "--token", "s3cretvalue"))
    for show, there in ((False, False), (True, True)):
        shown = one._replace(apps=(app,), show_secrets=show)
        assert ("s3cretvalue" in plan_as_text(shown)) is there
        assert ("s3cretvalue" in json.dumps(plan_as_json(shown))) is there


def test_plan_and_report_mask_edits_agents_and_options_unless_asked() -> None:
    agent = "sshpass -p hunter2 ssh -p 2222 {host} {command}"
    one = JOBS["one-rank"]
    app = one.apps[0]._replace(edits=(("prepend", "A_TOKEN", "s3cret", ":"), ("append", "PATH", "/bin", ":")))
    nodes = tuple(node._replace(agent=agent) for node in one.allocation.nodes)
    allocation = one.allocation._replace(nodes=nodes)
    words = ["--remote-agent", agent, "--prepend-env", "A_TOKEN", "s3cret", "--prepend-env", "PATH", "/bin"]
    for show in (False, True):
        shown = one._replace(apps=(app,), allocation=allocation, show_secrets=show)
        chosen = request([*words, *(["--show-secrets"] if show else []), "prog"]).settings
        data = json.dumps(plan_as_json(shown, chosen))
        for text in (data, plan_as_text(shown) + settings_as_text(chosen)):
            assert ("s3cret" in text, "hunter2" in text) == (show, show)
            assert "-p 2222" in text
        assert "/bin" in data
