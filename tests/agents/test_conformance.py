"""The conformance tests on the agents that need no other machine; test_agent_ssh.py runs them on real hosts."""

from __future__ import annotations

import sys

from mpilaunch.agent import Agent, AgentOptions, load
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents.conformance import AgentConformance

SCRIPT = 'if test $0 = somewhere; then eval "exec $1"; fi; echo ssh: $0: Connection refused >&2; exit 255'
TEMPLATE = f"sh -c '{SCRIPT}' {{host}} {{command}}"
"""An agent that reaches one name, `somewhere`."""


class TestLocal(AgentConformance):
    node = Node(0, "local", (), "local")
    python = sys.executable

    def make_agent(self) -> Agent:
        return load("local", AgentOptions())


class TestCommand(AgentConformance):
    node = Node(0, "somewhere", (), "command")
    unreachable = Node(1, "elsewhere", (), "command")
    python = sys.executable

    def make_agent(self) -> Agent:
        return load(TEMPLATE, AgentOptions())


class TestFake(AgentConformance):
    node = Node(0, "node01", (), "fake")
    unreachable = Node(1, "connection-refused", (), "fake")
    python = sys.executable

    def make_agent(self) -> Agent:
        return load("fake", AgentOptions())
