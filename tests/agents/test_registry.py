"""Agents are found by name, and what mpilaunch knows of one stands in its row."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys

import pytest

from mpilaunch.agent import LOCAL, AgentOptions
from mpilaunch.errors import UsageError
from mpilaunch_agents.command import CommandAgent
from mpilaunch_agents.fake import FakeAgent
from mpilaunch_agents.registry import AGENTS, LISTED, calling_back, connector_count, load, reconnect_time, row_of
from tests.support.sources import SOURCES, module_of


@pytest.mark.parametrize("name", sorted(set(AGENTS) - {"command"}))
def test_every_built_in_agent_loads(name: str) -> None:
    agent = load(name, AgentOptions())
    assert type(agent).__name__.lower() == f"{name}agent"


def test_a_text_with_a_blank_or_a_brace_is_a_template() -> None:
    assert isinstance(load("rsh -n", AgentOptions()), CommandAgent)
    assert isinstance(load("/opt/reach-{host}", AgentOptions()), CommandAgent)
    assert isinstance(load("command", AgentOptions(template="rsh")), CommandAgent)


def test_unknown_agent_names_the_near_one_and_all() -> None:
    with pytest.raises(UsageError) as caught:
        load("opensh", AgentOptions())
    assert caught.value.reference == "agent-unknown"
    assert caught.value.message == "unknown agent 'opensh'; did you mean openssh?"
    assert caught.value.context == ("agents: ssh, openssh, kubectl, slurm, gridengine, local",)
    assert caught.value.hint == "to use a program as agent, write a template: 'opensh {host} {command}'"


def _declare(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    point = importlib.metadata.EntryPoint("third", value, "mpilaunch.agents")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: (point,) if group == point.group else ())


def test_third_party_agent_comes_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    _declare(monkeypatch, "mpilaunch_agents.fake:FakeAgent")
    assert isinstance(load("third", AgentOptions()), FakeAgent)


def test_broken_third_party_agent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _declare(monkeypatch, "no_such_module_here:Agent")
    with pytest.raises(UsageError, match=r"agent 'third' \(no_such_module_here:Agent\) cannot be loaded"):
        load("third", AgentOptions())


def test_local_agent_imports_nothing_heavy() -> None:
    script = (
        "import sys, mpilaunch.agent, mpilaunch_agents.registry as r; r.load('local', mpilaunch.agent.AgentOptions()); "
        "print([name for name in ('asyncssh', 'rich', 'yaml', 'importlib.metadata') if name in sys.modules])"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_the_row_of_a_name_that_is_not_in_the_table_has_the_usual_values() -> None:
    assert row_of("tsh ssh {host}") == AGENTS["command"]
    third = row_of("third")
    assert third._replace(make=AGENTS["openssh"].make) == AGENTS["openssh"]


@pytest.mark.parametrize(
    ("name", "setting", "seconds"),
    [("ssh", None, 10), ("kubectl", None, 60), ("kubectl", 5, 5), ("third", None, 10), ("ssh", 0, 0), (LOCAL, 7, 0)],
)
def test_the_time_to_restore_a_connection_is_the_users_or_the_agents(name: str, setting: float | None, seconds: float) -> None:
    assert reconnect_time(name, setting) == seconds


@pytest.mark.parametrize(
    ("choice", "agents", "in_pod", "expected"),
    [
        ("auto", ["kubectl"] * 33, True, ("kubectl",)),
        ("auto", ["kubectl"] * 32, True, ()),
        ("auto", ["kubectl"] * 33, False, ()),
        ("auto", ["ssh"] * 1000, True, ()),
        ("never", ["kubectl"] * 33, True, ()),
        ("always", ["ssh", LOCAL, "kubectl", "tsh ssh"], False, ("kubectl", "ssh", "tsh ssh")),
    ],
)
def test_agents_that_call_back(choice: str, agents: list[str], in_pod: bool, expected: tuple[str, ...]) -> None:
    assert calling_back(choice, agents, in_pod=in_pod) == expected


@pytest.mark.parametrize(
    ("setting", "nodes", "cpus", "expected"),
    [
        (None, 1000, 16, 8),
        (None, 1000, 4, 3),
        (None, 200, 16, 3),
        (None, 127, 16, 0),
        (None, 1000, 2, 0),
        (1, 1000, 16, 0),
        (9, 3, 2, 3),
    ],
)
def test_number_of_connectors(setting: int | None, nodes: int, cpus: int, expected: int) -> None:
    assert connector_count(setting, nodes, cpus) == expected


OF_CHOICE = ("mpilaunch_agents", "mpilaunch.hosts.kubernetes", "mpilaunch.hosts.schedulers", "mpilaunch.cli.dialects")
"""Modules that choose an agent for the user, by the variables of an operator or a scheduler, or another launcher's words."""


def test_no_other_module_knows_an_agent_by_name() -> None:
    names = {*LISTED} - {"ssh", "slurm", LOCAL}  # also a program, a profile, and a word
    for path in SOURCES:
        module = module_of(path)
        if not module.startswith(OF_CHOICE):
            texts = {node.value for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Constant)}
            assert not names & texts, module
