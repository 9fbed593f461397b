"""The conformance tests of agents on a real Grid Engine: `test_jobs.py` runs this file within a job."""

from __future__ import annotations

from mpilaunch.agent import Agent, AgentOptions
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents.conformance import AgentConformance
from mpilaunch_agents.registry import load
from tests.support.two_machines import SECOND


class TestGridEngine(AgentConformance):
    node = Node(0, SECOND, (), "gridengine")
    unreachable = Node(1, "n03", (), "gridengine")

    def make_agent(self) -> Agent:
        return load("gridengine", AgentOptions())
