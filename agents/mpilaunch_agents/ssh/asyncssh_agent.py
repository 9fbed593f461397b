"""The agent `ssh`: connects by asyncssh in the head's own process, one connection per channel; a host to which the user's own
ssh keeps a master connection is reached by that.

A host's settings are those that OpenSSH's `ssh -G` prints. The agent checks host keys and never asks for a password or a
passphrase. It refuses options that it does not support and names the agent `openssh`, which supports them. asyncssh takes 0.1 s
to import: a thread does so when the first node is opened, while `ssh -G` runs and the first TCP connections are made.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpilaunch.agent import AgentFailure, AgentOptions, Channel, ChannelEvents, Node
from mpilaunch.errors import UsageError
from mpilaunch.text import did_you_mean
from mpilaunch_agents.openssh import OpensshAgent
from mpilaunch_agents.ssh import masters
from mpilaunch_agents.ssh.settings import Route, SshSettings, connect_tcp

if TYPE_CHECKING:
    from mpilaunch_agents.ssh.connection import Connections

SETTINGS = """
    AddressFamily BindAddress CASignatureAlgorithms CertificateFile Ciphers Compression ConnectTimeout ControlPath
    EnableSSHKeySign ForwardAgent GlobalKnownHostsFile GSSAPIAuthentication GSSAPIDelegateCredentials GSSAPIKeyExchange
    HostbasedAuthentication HostKeyAlgorithms HostKeyAlias Hostname IdentitiesOnly IdentityAgent IdentityFile KexAlgorithms
    MACs PKCS11Provider Port PreferredAuthentications ProxyCommand ProxyJump PubkeyAuthentication RekeyLimit SendEnv
    ServerAliveCountMax ServerAliveInterval SetEnv StrictHostKeyChecking TCPKeepAlive User UserKnownHostsFile
"""
SUPPORTED = {name.lower(): name for name in SETTINGS.split()}
"""OpenSSH settings that `--ssh-option` may contain for this agent."""

ALWAYS_SET = {"batchmode": "yes", "clearallforwardings": "yes", "forwardx11": "no", "requesttty": "no"}
"""Settings that this agent always uses: accepted, without effect."""
HARMLESS = """
    AddKeysToAgent ChallengeResponseAuthentication CheckHostIP ConnectionAttempts ControlMaster ControlPersist EscapeChar
    HashKnownHosts KbdInteractiveAuthentication LogLevel NumberOfPasswordPrompts PasswordAuthentication UpdateHostKeys
    VisualHostKey
""".lower().split()
"""Settings that change nothing here, whatever their value: mpilaunch tries again until --start-timeout, asks for nothing, never
starts a master connection, prints no messages of ssh and writes no file of keys."""


class SshAgent:
    """Reaches nodes by asyncssh; raises UsageError for an unsupported `--ssh-option`."""

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._overrides = tuple(line for text in options.ssh_options if (line := config_line(text)))
        self._settings = SshSettings()
        self._connections: asyncio.Task[Connections] | None = None

    def argv(self, node: Node, command: Sequence[str]) -> Sequence[str]:
        """Return the command line of OpenSSH that does the same, for a user who looks for the reason of a failure."""
        return OpensshAgent(self._options).argv(node, command)

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> Channel:
        route = asyncio.ensure_future(self._route_to(node))
        if self._connections is None:
            self._connections = asyncio.ensure_future(self._load())
        try:
            return await (await asyncio.shield(self._connections)).open(node, route, command, events)
        except BaseException:
            route.cancel()
            if not isinstance(unused := (await asyncio.gather(route, return_exceptions=True))[0], BaseException):
                unused.close()
            raise

    async def close(self) -> None:
        loading, self._connections = self._connections, None
        if loading is not None:
            (loaded,) = await asyncio.gather(loading, return_exceptions=True)
            if not isinstance(loaded, BaseException):
                await loaded.close()

    async def _route_to(self, node: Node) -> Route:
        settings = await self._settings.of(node.name, node.user, node.port, self._overrides)
        if await masters.answers(settings):
            return Route(settings, None, by_master=True)
        return Route(settings, await connect_tcp(settings) if settings.direct else None)

    async def _load(self) -> Connections:
        await asyncio.sleep(0)  # first start `ssh -G` for the nodes that are opened at the same time
        make = await asyncio.get_running_loop().run_in_executor(None, _import_connections)
        return make(self._options, self._settings)


def _import_connections() -> type[Connections]:
    """Import asyncssh, which where a C compiler is installed looks for libraries by it and so needs a place to write."""
    try:
        from mpilaunch_agents.ssh.connection import Connections
    except (ImportError, OSError) as error:
        raise AgentFailure("agent-missing", f"asyncssh, of the agent ssh, cannot be loaded: {error}") from error
    return Connections


def config_line(text: str) -> str:
    """Return `Name=value` as a line of ssh configuration, "" for one without effect; raises UsageError."""
    match = re.fullmatch(r" *(\w+)(?: *= *| +)(\S.*?) *", text)
    if match is None:
        raise UsageError("ssh-option", f"--ssh-option '{text}': not of the form Name=value", hint="for example Port=2222")
    name, value = match.groups()
    if ALWAYS_SET.get(name.lower()) == value.lower() or name.lower() in HARMLESS:
        return ""
    if name.lower() not in SUPPORTED:
        raise UsageError(
            "ssh-option",
            f"--ssh-option '{text}': the agent ssh cannot honour {name}{did_you_mean(name, SUPPORTED.values())}",
            hint="--agent openssh uses the system's ssh, which knows all of its options",
        )
    return f"{SUPPORTED[name.lower()]} {value}"
