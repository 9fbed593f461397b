"""The Agent protocol: how the head runs one command on one node and talks with it over its stdin and stdout.

An agent reaches nodes; it knows nothing of ranks, the wire protocol or jobs. It never retries and never prints: it reports.
`mpilaunch_agents.registry` finds an agent by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from mpilaunch.defaults import CONNECT_TIMEOUT


class AgentOptions(NamedTuple):
    """The user's settings for agents.

    Attributes:
        template: the command template of the agent `command`; {host}, {user}, {port}, {command} and {name} are replaced;
            without {command} the command is appended as one argument after the host.
        ssh_options: OpenSSH settings as `Name=value` (`--ssh-option`).
        insecure_host_keys: accept any host key.
        namespace, container, context: for pods whose name and hostfile line do not set them; None leaves them to kubectl.
        connect_timeout: seconds allowed for making one connection.
        call_back: names of agents whose daemons connect back to the head (`--call-back`).
        connectors: number of processes that make the connections of the agent `ssh` (`--connectors`); None for automatic.
    """

    template: str | None = None
    ssh_options: tuple[str, ...] = ()
    insecure_host_keys: bool = False
    namespace: str | None = None
    container: str | None = None
    context: str | None = None
    connect_timeout: float = CONNECT_TIMEOUT
    call_back: tuple[str, ...] = ()
    connectors: int | None = None


class ChannelEnd(NamedTuple):
    """How a channel ended.

    Attributes:
        exit_code: of the remote command or of the agent's process; 128 + N for signal N; None when unknown.
        error: the agent's error message when the connection was lost, else "".
        cause: a key of `CAUSES` when the message explains why the node was not reached or was lost, else "". An agent that
            runs a process learns this only after `open`, too late to raise AgentFailure.
    """

    exit_code: int | None
    error: str = ""
    cause: str = ""


class AgentFailure(Exception):
    """A node could not be reached. Raised by `Agent.open`.

    Args:
        cause: a key of `CAUSES`.
        detail: the agent's error message, one line.
    """

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause
        self.detail = detail


class ChannelEvents(Protocol):
    """The head's callbacks for a channel; the agent calls them from the event loop, never after `closed`."""

    def data_received(self, data: bytes) -> None:
        """Handle bytes of the command's stdout."""

    def stderr_received(self, data: bytes) -> None:
        """Handle bytes of the command's (or the agent's own) stderr."""

    def pause_writing(self) -> None:
        """Called when the channel's write buffer is full."""

    def resume_writing(self) -> None:
        """Called when the channel's write buffer has room again."""

    def closed(self, end: ChannelEnd) -> None:
        """Called exactly once, after all data, when the channel has ended."""


class Channel(Protocol):
    """A running command on a node."""

    def write(self, data: bytes) -> None:
        """Send bytes to the command's stdin; buffers without limit, see `ChannelEvents.pause_writing`."""

    def write_eof(self) -> None:
        """Close the command's stdin."""

    def pause_reading(self) -> None:
        """Let the command's stdout wait, since its reader is behind; what has been read may still be passed on. Idempotent."""

    def resume_reading(self) -> None:
        """Read the command's stdout again. Idempotent."""

    def abort(self) -> None:
        """End the channel at once and release what it holds on the head; `closed` still follows. Idempotent."""


class Node(Protocol):
    """The properties of a node that an agent may use to reach it; None leaves the choice to the agent.

    Attributes:
        index: its place in the job's allocation, which identifies it: two nodes may have the same name.
        name: as the user wrote it.
        user: the login name.
        port: of the login service.
        namespace, container: of a pod.
    """

    @property
    def index(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def user(self) -> str | None: ...
    @property
    def port(self) -> int | None: ...
    @property
    def namespace(self) -> str | None: ...
    @property
    def container(self) -> str | None: ...


class Agent(Protocol):
    """Runs commands on nodes."""

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> Channel:
        """Start `command` (an argument list, not yet quoted for any shell) on `node`; raises AgentFailure."""

    async def close(self) -> None:
        """End every process, connection and task of this agent before returning."""


class PrestartedAgent(Agent, Protocol):
    """An agent for one machine only: it can start a command before the job or an event loop exists."""

    def begin(self, command: Sequence[str], fork_server: Sequence[str] = ()) -> None:
        """Start `command` for the first `open` of it, and where many may follow a `fork_server` that forks it for each."""

    def dismiss(self) -> None:
        """End what was started and no `open` has used."""


@runtime_checkable
class CommandLineAgent(Protocol):
    """An agent that can name a command line that a user can run by hand to see why a node is not reached."""

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the argument list of a program that runs `command` on `node`; raises UsageError."""


CAUSES = {
    "host-unknown": "host name unknown",
    "connection-refused": "connection refused",
    "timeout": "no answer in time",
    "unreachable": "no route to the host",
    "host-key-unknown": "host key not known",
    "host-key-changed": "host key changed",
    "key-refused": "login refused",
    "user-unknown": "your user id has no name here",
    "agent-missing": "the agent's program was not found",
    "python-missing": "python3 not found",
    "python-too-old": "python3 is older than 3.8",
    "process-limit": "limit of processes reached",
    "connection-closed": "connection closed during the start",
    "agent-failed": "the agent failed",
    "no-stdin": "the agent does not forward stdin",
    "head-unreachable": "the node cannot call this machine back",
    "pod-unknown": "no such pod",
    "pod-starting": "the pod's container does not run yet",
    "pod-completed": "the pod has completed",
    "container-unknown": "the pod has no such container",
    "outside-job": "this is no job of its batch system",
    "job-ended": "the batch system has ended the job, or its step",
    "cluster-unreachable": "the cluster did not answer",
    "cluster-login": "the cluster rejected the login",
    "cluster-forbidden": "not allowed by the cluster's RBAC",
}
"""Reasons why a node did not start, with their text for the user; `head.nodes.failures` groups nodes by key and adds hints."""

PYTHON_TOO_OLD = 97
CHECK_PYTHON = (
    "if sys.version_info<(3,8):\n"
    " sys.stderr.write('mpilaunch: python '+sys.version.split()[0]+' is older than 3.8\\n')\n"
    f" sys.exit({PYTHON_TOO_OLD})\n"
)
"""Code that a node's Python runs first (with `sys` imported), and its exit code when that Python is too old."""

UNPACK = "import binascii,sys,zlib;exec(zlib.decompress(binascii.a2b_base64(sys.argv.pop(1))))"
"""Runs the code that the first argument contains. It has no newline, which csh refuses between quotes, and no quote, `!` or
backslash, which shells read differently."""


def python_command(python: str, name: str, code: str, *arguments: str) -> list[str]:
    """Return the command that runs code in a node's Python; its words survive every login shell.

    Args:
        name: what a list of processes shows.
    """
    import zlib  # a local launch needs neither
    from binascii import b2a_base64

    packed = b2a_base64(zlib.compress(code.encode(), 9), newline=False).decode()
    return [python, "-I", "-S", "-B", "-c", f"{UNPACK} # {name}", packed, *arguments]


LOCAL = "local"
"""The name of this machine's agent, a PrestartedAgent; as the name of a host it means this machine too."""


def is_template(name: str) -> bool:
    """Return whether an agent's name is a command template."""
    return any(character in name for character in " \t\n{")
