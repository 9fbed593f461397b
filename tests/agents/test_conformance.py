"""The conformance tests on the agents that need no other machine; test_agent_ssh.py runs them on real hosts."""

from __future__ import annotations

import sys

from mpilaunch.agent import Agent, AgentOptions
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents.conformance import AgentConformance
from mpilaunch_agents.registry import load
from tests.support.agents.programs import TEMPLATE


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
