"""The Agent protocol: how the head runs one command on one node and talks with it over its stdin and stdout.

An agent knows how to reach a node and nothing of ranks, wire or jobs. It never retries and never prints: it reports.
`load` finds an agent by name: the built-in table first, then the entry point group `mpilaunch.agents` (looking there takes
longer than a local launch should, so a third party's agent cannot take a built-in name); a text with a blank or a brace is a
command template.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from mpilaunch.errors import UsageError


class AgentOptions(NamedTuple):
    """What the user says to every agent.

    Attributes:
        template: the command template, for the `command` agent only; {host}, {user}, {port}, {command} and {name} are
            replaced; without {command} the command is appended as one argument after the host.
        ssh_options: OpenSSH's `Name=value` settings (`--ssh-option`).
        insecure_host_keys: accept any host key.
        namespace, container, context: of pods, where neither their name nor their line of the hostfile says it; None leaves it
            to kubectl.
        connect_timeout: seconds for one connection to be made.
        call_back: names of agents behind which the daemons call the head back (`--call-back`).
        connectors: processes that make the connections of the agent `ssh` (`--connectors`); None for as many as help.
    """

    template: str | None = None
    ssh_options: tuple[str, ...] = ()
    insecure_host_keys: bool = False
    namespace: str | None = None
    container: str | None = None
    context: str | None = None
    connect_timeout: float = 30.0
    call_back: tuple[str, ...] = ()
    connectors: int | None = None


class ChannelEnd(NamedTuple):
    """How a channel ended.

    Attributes:
        exit_code: of the remote command or of the agent's process; 128 + N for signal N; None when unknown.
        error: the agent's own words when the connection was lost, else "".
        cause: a key of `CAUSES` when the agent's words tell why the node was not reached or was lost, else "". An agent that
            is a process learns this only after `open`, so it cannot raise AgentFailure.
    """

    exit_code: int | None
    error: str = ""
    cause: str = ""


class AgentFailure(Exception):
    """A node could not be reached. Raised by `Agent.open`.

    Args:
        cause: a key of `CAUSES`.
        detail: the agent's own words, one line.
    """

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause
        self.detail = detail


class ChannelEvents(Protocol):
    """What the head does with a channel; the agent calls these from the event loop, never after `closed`."""

    def data_received(self, data: bytes) -> None:
        """Take bytes of the command's stdout."""

    def stderr_received(self, data: bytes) -> None:
        """Take bytes of the command's (or the agent's own) stderr."""

    def pause_writing(self) -> None:
        """Be told that the channel's write buffer is full."""

    def resume_writing(self) -> None:
        """Be told that the channel takes data again."""

    def closed(self, end: ChannelEnd) -> None:
        """Be told, exactly once and after all data, that the channel has ended."""


class Channel(Protocol):
    """A running command on a node."""

    def write(self, data: bytes) -> None:
        """Send bytes to the command's stdin; buffers without limit, see `ChannelEvents.pause_writing`."""

    def write_eof(self) -> None:
        """Close the command's stdin."""

    def abort(self) -> None:
        """End the channel and everything it holds on the head, at once; `closed` still follows. Idempotent."""


class Node(Protocol):
    """What an agent needs to know of a node: its name, and what the hostfile says about the way to it."""

    @property
    def name(self) -> str:
        """As the user wrote it."""

    @property
    def user(self) -> str | None:
        """Login name, None for the agent's default."""

    @property
    def port(self) -> int | None:
        """Port of the login, None for the agent's default."""

    @property
    def namespace(self) -> str | None:
        """Of a pod."""

    @property
    def container(self) -> str | None:
        """Of a pod."""


class Agent(Protocol):
    """A way to run a command on a node."""

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> Channel:
        """Start `command` (an argument list, not yet quoted for any shell) on `node`; raises AgentFailure."""

    async def close(self) -> None:
        """Give back everything: no process, connection or task of this agent is left when it returns."""


class PrestartedAgent(Agent, Protocol):
    """An agent whose nodes are all one machine, so that it can start a command before there is a job, or an event loop."""

    def begin(self, command: Sequence[str], count: int) -> None:
        """See to it that `command` has been started `count` times; each `open` of the same command takes one over."""

    def dismiss(self) -> None:
        """End what no `open` has taken over."""


CAUSES = {
    "host-unknown": "host name unknown",
    "connection-refused": "connection refused",
    "timeout": "no answer in time",
    "unreachable": "no route to the host",
    "host-key-unknown": "host key not known",
    "host-key-changed": "host key changed",
    "key-refused": "login refused",
    "agent-missing": "the agent's program was not found",
    "python-missing": "python3 not found",
    "python-too-old": "python3 is older than 3.8",
    "connection-closed": "connection closed during the start",
    "agent-failed": "the agent failed",
    "no-stdin": "the agent hands on no stdin",
    "head-unreachable": "the node cannot call this machine back",
    "pod-unknown": "no such pod",
    "pod-starting": "the pod's container does not run yet",
    "pod-completed": "the pod has completed",
    "container-unknown": "the pod has no such container",
    "cluster-unreachable": "the cluster did not answer",
    "cluster-login": "the cluster does not know who we are",
    "cluster-forbidden": "not allowed by the cluster's RBAC",
}
"""Why a node did not start, as words for the user; `head.failures` folds nodes by these keys and adds the hints."""

PYTHON_TOO_OLD = 97
CHECK_PYTHON = (
    "if sys.version_info<(3,8):\n"
    " sys.stderr.write('mpilaunch: python '+sys.version.split()[0]+' is older than 3.8\\n')\n"
    f" sys.exit({PYTHON_TOO_OLD})\n"
)
"""What a node's Python runs first, `sys` being imported, and its exit code when it is too old."""

BUILT_IN = {
    "local": "mpilaunch_agents.local:LocalAgent",
    "ssh": "mpilaunch_agents.ssh.agent:SshAgent",
    "openssh": "mpilaunch_agents.openssh:OpensshAgent",
    "kubectl": "mpilaunch_agents.kubectl:KubectlAgent",
    "command": "mpilaunch_agents.command:CommandAgent",
    "fake": "mpilaunch_agents.fake:FakeAgent",
}


CONNECTS_ITSELF = ("ssh",)
"""Built-in agents whose connections take the head's own time: others start a process for each."""
NODES_OF_CONNECTOR, MOST_CONNECTORS = 64, 8
"""Nodes for which a process that makes connections is worth its start, which takes as long as they do; the most of them."""

NOT_BY_NAME = ("command", "fake")
"""Built-in agents that a list for users leaves out: one is meant by its template, the other for tests."""

ENTRY_POINTS = "mpilaunch.agents"
"""The group in which a distribution declares its agents: a callable that takes AgentOptions and returns an Agent."""


def is_built_in(name: str) -> bool:
    """Say whether an agent is one of ours, or a command template."""
    return name in BUILT_IN or is_template(name)


def load(name: str, options: AgentOptions, nodes: int = 1) -> Agent:
    """Return the agent called `name`, or the command agent when `name` is a template; raises UsageError.

    Args:
        nodes: how many it is to reach.
    """
    connectors = connectors_for(options.connectors, nodes, len(os.sched_getaffinity(0))) if name in CONNECTS_ITSELF else 0
    if connectors:
        agent = cast(Agent, import_module("mpilaunch_agents.ssh.connectors").ConnectorsAgent(name, options, connectors))
    else:
        agent = _load(name, options)
    if name in options.call_back:
        return cast(Agent, import_module("mpilaunch_agents.callback.agent").CallbackAgent(agent, stdin=name in BUILT_IN))
    return agent


def connectors_for(said: int | None, nodes: int, cpus: int) -> int:
    """Return how many processes make the connections to `nodes` nodes, 0 for the head alone; one core stays the head's."""
    if said is not None:
        return min(said, nodes) if said > 1 else 0
    helpful = min(nodes // NODES_OF_CONNECTOR, cpus - 1, MOST_CONNECTORS)
    return helpful if helpful > 1 else 0


def _load(name: str, options: AgentOptions) -> Agent:
    if is_template(name):
        name, options = "command", options._replace(template=name)
    if name in BUILT_IN:
        module, _, factory = BUILT_IN[name].partition(":")
        return cast(Agent, getattr(import_module(module), factory)(options))
    return _third_party(name)(options)


def is_template(name: str) -> bool:
    """Say whether an agent is a command template."""
    return any(sign in name for sign in " \t\n{")


def _third_party(name: str) -> Callable[[AgentOptions], Agent]:
    from importlib.metadata import entry_points  # 15 ms, and needed only for a name that is not built in

    declared = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in declared:
        raise _unknown(name, [*BUILT_IN, *sorted(declared)])
    factory: Any
    try:
        factory = declared[name].load()
    except Exception as error:
        where = declared[name].value
        raise UsageError("agent-broken", f"agent '{name}' ({where}) cannot be loaded: {error!r}") from error
    return cast(Callable[[AgentOptions], Agent], factory)


def _unknown(name: str, known: Sequence[str]) -> UsageError:
    from mpilaunch.text import did_you_mean

    return UsageError(
        "agent-unknown",
        f"unknown agent '{name}'{did_you_mean(name, known)}",
        context=["agents: " + ", ".join(one for one in known if one not in NOT_BY_NAME)],
        hint=f"to use a program as agent, write a template: '{name} {{host}} {{command}}'",
    )
