"""The agents of a job, loaded by name when a node needs one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mpilaunch_agents.registry import load

if TYPE_CHECKING:
    from mpilaunch.agent import Agent
    from mpilaunch.job.spec import JobSpec  # `begin` imports this module before a job is read


class Agents(dict[str, "Agent"]):
    """Agents by name: those of the given nodes are loaded at once, others on first look-up; both raise UsageError."""

    def __init__(self, job: JobSpec, indexes: Iterable[int]) -> None:
        self._options = job.agent
        names = [job.allocation.nodes[index].agent for index in indexes]
        super().__init__((name, load(name, job.agent, names.count(name))) for name in dict.fromkeys(names))

    def __missing__(self, name: str) -> Agent:
        self[name] = loaded = load(name, self._options)
        return loaded

    async def close(self) -> None:
        for one in self.values():
            await one.close()
