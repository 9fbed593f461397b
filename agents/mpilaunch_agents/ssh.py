"""The agent `ssh`: asyncssh, one connection per channel, within the head's own process and loop.

It obeys ~/.ssh/config and /etc/ssh/ssh_config as far as asyncssh understands them, checks host keys, and never asks for a
password or a passphrase. What it cannot honour it refuses and names the agent `openssh`, which can. asyncssh takes 0.1 s to
import: `ssh_connection` is imported when the first nodes are opened, and have been connected to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpilaunch.agent import AgentOptions, Channel, ChannelEvents
from mpilaunch.allocation import Node
from mpilaunch.errors import UsageError
from mpilaunch.spelling import did_you_mean

if TYPE_CHECKING:
    from mpilaunch_agents.ssh_connection import Connections
    from mpilaunch_agents.ssh_early import EarlyConnection

SETTINGS = """
    AddressFamily BindAddress CASignatureAlgorithms CertificateFile Ciphers Compression ConnectTimeout EnableSSHKeySign
    ForwardAgent GlobalKnownHostsFile GSSAPIAuthentication GSSAPIDelegateCredentials GSSAPIKeyExchange
    HostbasedAuthentication HostKeyAlgorithms HostKeyAlias Hostname IdentitiesOnly IdentityAgent IdentityFile KexAlgorithms
    MACs PKCS11Provider Port PreferredAuthentications ProxyCommand ProxyJump PubkeyAuthentication RekeyLimit SendEnv
    ServerAliveCountMax ServerAliveInterval SetEnv StrictHostKeyChecking TCPKeepAlive User UserKnownHostsFile
"""
HONOURED = {name.lower(): name for name in SETTINGS.split()}
"""OpenSSH's settings that `--ssh-option` may give to this agent."""

CONFIG_FILES = ("~/.ssh/config", "/etc/ssh/ssh_config")
SSH_PORT = 22

EARLY_SECONDS = 0.02
"""How long the first connections may take before asyncssh is loaded all the same; these go on meanwhile."""

ALREADY_SO = {"batchmode": "yes", "clearallforwardings": "yes", "forwardx11": "no", "requesttty": "no"}
"""Settings that describe what this agent does anyway."""


class SshAgent:
    """Reaches nodes with asyncssh; raises UsageError for an `--ssh-option` that it cannot honour."""

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._settings = [line for text in options.ssh_options if (line := config_line(text))]
        self._connections: Connections | None = None
        self._early: set[EarlyConnection] = set()
        self._connects_early: bool | None = None

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> Channel:
        """Connect, log in and start the command; raises AgentFailure."""
        early = None
        if self._connections is None:
            early = await self._connect_early(node)
        if self._connections is None:
            from mpilaunch_agents.ssh_import import load_asyncssh

            load_asyncssh()
            from mpilaunch_agents.ssh_connection import Connections

            self._connections = Connections(self._options, self._settings)
        try:
            return await self._connections.open(node, command, events, early)
        finally:
            if early is not None:
                self._early.discard(early)
                early.close()

    async def _connect_early(self, node: Node) -> EarlyConnection | None:
        """Connect to one of the first nodes, where the configuration lets us know how; return when the import may begin."""
        import asyncio

        from mpilaunch_agents.ssh_early import EarlyConnection, leads_elsewhere

        if self._connects_early is None:
            self._connects_early = not leads_elsewhere(self._settings, CONFIG_FILES)
        if not self._connects_early:
            return None
        early = EarlyConnection(node.name, node.port or SSH_PORT)
        self._early.add(early)
        await asyncio.sleep(0)  # the other nodes of the first round come here too
        await asyncio.wait([one.task for one in self._early], timeout=EARLY_SECONDS)
        return early

    async def close(self) -> None:
        """Cut every connection and wait until all are gone."""
        for early in self._early:
            early.close()
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close()


def config_line(text: str) -> str:
    """Return `Name=value` as a line of an ssh configuration, "" when it holds anyway; raises UsageError."""
    match = re.fullmatch(r" *(\w+)(?: *= *| +)(\S.*?) *", text)
    if match is None:
        raise UsageError("ssh-option", f"--ssh-option '{text}': not of the form Name=value", hint="for example Port=2222")
    name, value = match.groups()
    if ALREADY_SO.get(name.lower()) == value.lower():
        return ""
    if name.lower() not in HONOURED:
        raise UsageError(
            "ssh-option",
            f"--ssh-option '{text}': the agent ssh cannot honour {name}{did_you_mean(name, HONOURED.values())}",
            hint="--agent openssh uses the system's ssh, which knows all of its options",
        )
    return f"{HONOURED[name.lower()]} {value}"
