"""The agents by name: a row of `AGENTS` for each, all that the rest of mpilaunch knows of it, and the one place that loads it.

A name is looked up first in the table, then in the entry point group `mpilaunch.agents`. Reading entry points is too slow for a
local launch, so a third party's agent cannot replace one of the table. A name that contains a blank or a brace is a command
template. A row imports its agent only when that is loaded.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

from mpilaunch.agent import LOCAL, Agent, AgentOptions, is_template
from mpilaunch.defaults import RECONNECT_IN_PODS, RECONNECT_TIMEOUT
from mpilaunch.errors import UsageError
from mpilaunch.text import did_you_mean


def _ssh(options: AgentOptions) -> Agent:
    from mpilaunch_agents.ssh.asyncssh_agent import SshAgent

    return SshAgent(options)


def _openssh(options: AgentOptions) -> Agent:
    from mpilaunch_agents.openssh import OpensshAgent

    return OpensshAgent(options)


def _kubectl(options: AgentOptions) -> Agent:
    from mpilaunch_agents.kubernetes.kubectl import KubectlAgent

    return KubectlAgent(options)


def _slurm(options: AgentOptions) -> Agent:
    from mpilaunch_agents.batch.steps import OneStepAgent, SlurmAgent

    return (OneStepAgent if "slurm" in options.call_back else SlurmAgent)(options)


def _grid_engine(options: AgentOptions) -> Agent:
    from mpilaunch_agents.batch.grid_engine import GridEngineAgent

    return GridEngineAgent(options)


def _local(options: AgentOptions) -> Agent:
    from mpilaunch_agents.local import LocalAgent

    return LocalAgent(options)


def _command(options: AgentOptions) -> Agent:
    from mpilaunch_agents.command import CommandAgent

    return CommandAgent(options)


def _fake(options: AgentOptions) -> Agent:
    from mpilaunch_agents.fake import FakeAgent

    return FakeAgent(options)


class Row(NamedTuple):
    """What is known of an agent before it is loaded; the defaults hold for third parties' agents.

    Attributes:
        make: returns the agent.
        listed: whether help and messages list it: `command` is selected by a template, and `fake` is for tests.
        in_process: whether it makes connections within a process of mpilaunch; the others start a process for each.
        reconnect: seconds that restoring a lost connection may take, if the user does not say; None: never restored.
        most_open: how many nodes it reaches from a pod before their daemons rather call back; None: any number.
        together: it starts the daemons of many nodes by one command, so they call back, and --fanout does not bound it.
    """

    make: Callable[[AgentOptions], Agent]
    listed: bool = True
    in_process: bool = False
    reconnect: float | None = RECONNECT_TIMEOUT
    most_open: int | None = None
    together: bool = False


AGENTS = {
    "ssh": Row(_ssh, in_process=True),
    "openssh": Row(_openssh),
    # Each open kubectl takes 50 MB of memory on the head. Pods rarely reach a head outside the cluster.
    "kubectl": Row(_kubectl, reconnect=RECONNECT_IN_PODS, most_open=32),
    "slurm": Row(_slurm, together=True),
    "gridengine": Row(_grid_engine),
    LOCAL: Row(_local, reconnect=None),
    "command": Row(_command, listed=False),
    "fake": Row(_fake, listed=False),
}
LISTED = tuple(name for name, row in AGENTS.items() if row.listed)
ENTRY_POINTS = "mpilaunch.agents"
"""The entry point group of third-party agents: each is a callable that takes AgentOptions and returns an Agent."""
NODES_PER_CONNECTOR, MAX_CONNECTORS = 64, 8
"""Number of nodes that justifies the start of one more connector, and the maximum number of connectors."""


def row_of(name: str) -> Row:
    """Return the row of an agent; one that is not in the table is a template or a third party's, and looked up when loaded."""
    return AGENTS.get(name) or (AGENTS["command"] if is_template(name) else Row(lambda options: _third_party(name)(options)))


def load(name: str, options: AgentOptions, nodes: int = 1) -> Agent:
    """Return the agent called `name`, or the command agent when `name` is a template; raises UsageError.

    Args:
        nodes: number of nodes the agent will reach.
    """
    row = row_of(name)
    plain = options._replace(template=name) if is_template(name) else options
    agent = row.make(plain)
    count = connector_count(options.connectors, nodes, len(os.sched_getaffinity(0))) if row.in_process else 0
    if count:
        from mpilaunch_agents.ssh.connectors import ConnectorsAgent

        agent = ConnectorsAgent(name, options._replace(connectors=1, call_back=()), agent, count)
    if name in options.call_back:
        from mpilaunch_agents.callback.wrapper import CallbackAgent

        return CallbackAgent(agent, stdin=name in AGENTS)
    return agent


def connector_count(setting: int | None, nodes: int, cpus: int) -> int:
    """Return how many connectors to start for `nodes` nodes; 0 when the head makes them. One CPU is left to the head."""
    if setting is not None:
        return min(setting, nodes) if setting > 1 else 0
    useful = min(nodes // NODES_PER_CONNECTOR, cpus - 1, MAX_CONNECTORS)
    return useful if useful > 1 else 0


def calling_back(choice: str, agents: Iterable[str], *, in_pod: bool) -> tuple[str, ...]:
    """Return the names of the agents whose daemons connect back to the head, in order.

    Args:
        choice: the value of --call-back.
        agents: the agent of each node.
        in_pod: whether the head runs in a pod.
    """
    counts = Counter(agents)
    if choice == "always":
        return tuple(sorted(counts.keys() - {LOCAL}))
    together = {name for name in counts if row_of(name).together}
    many = {name for name, count in counts.items() if (most := row_of(name).most_open) is not None and count > most}
    return tuple(sorted(together | (many if in_pod else set()))) if choice == "auto" else ()


def reconnect_time(name: str, setting: float | None) -> float:
    """Return the seconds that restoring a lost connection of an agent may take; 0: it is not restored."""
    usual = row_of(name).reconnect
    if usual is None:
        return 0.0
    return usual if setting is None else setting


def _third_party(name: str) -> Callable[[AgentOptions], Agent]:
    """Return the agent of an entry point; raises UsageError."""
    from importlib.metadata import entry_points  # 15 ms, and needed only for a name that is not in the table

    declared = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in declared:
        try:
            return cast(Callable[[AgentOptions], Agent], declared[name].load())
        except Exception as error:
            where = declared[name].value
            raise UsageError("agent-broken", f"agent '{name}' ({where}) cannot be loaded: {error!r}") from error
    raise UsageError(
        "agent-unknown",
        f"unknown agent '{name}'{did_you_mean(name, [*AGENTS, *sorted(declared)])}",
        context=["agents: " + ", ".join([*LISTED, *sorted(declared)])],
        hint=f"to use a program as agent, write a template: '{name} {{host}} {{command}}'",
    )
