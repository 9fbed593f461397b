"""The agent `ssh`: asyncssh, one connection per channel, within the head's own process and loop.

The settings of a host are those that OpenSSH's `ssh -G` prints. The agent checks host keys, and never asks for a password or a
passphrase. What it cannot honour it refuses and names the agent `openssh`, which can. asyncssh takes 0.2 s to import:
`ssh_connection` is imported when the first node is opened.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpilaunch.agent import AgentOptions, Channel, ChannelEvents
from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import Node
from mpilaunch.text import did_you_mean

if TYPE_CHECKING:
    from mpilaunch_agents.ssh.connection import Connections

SETTINGS = """
    AddressFamily BindAddress CASignatureAlgorithms CertificateFile Ciphers Compression ConnectTimeout EnableSSHKeySign
    ForwardAgent GlobalKnownHostsFile GSSAPIAuthentication GSSAPIDelegateCredentials GSSAPIKeyExchange
    HostbasedAuthentication HostKeyAlgorithms HostKeyAlias Hostname IdentitiesOnly IdentityAgent IdentityFile KexAlgorithms
    MACs PKCS11Provider Port PreferredAuthentications ProxyCommand ProxyJump PubkeyAuthentication RekeyLimit SendEnv
    ServerAliveCountMax ServerAliveInterval SetEnv StrictHostKeyChecking TCPKeepAlive User UserKnownHostsFile
"""
HONOURED = {name.lower(): name for name in SETTINGS.split()}
"""OpenSSH's settings that `--ssh-option` may give to this agent."""

ALREADY_SO = {"batchmode": "yes", "clearallforwardings": "yes", "forwardx11": "no", "requesttty": "no"}
"""Settings that describe what this agent does anyway."""


class SshAgent:
    """Reaches nodes with asyncssh; raises UsageError for an `--ssh-option` that it cannot honour."""

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._settings = [line for text in options.ssh_options if (line := config_line(text))]
        self._connections: Connections | None = None

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> Channel:
        """Connect, log in and start the command; raises AgentFailure."""
        if self._connections is None:
            from mpilaunch_agents.ssh.connection import Connections

            self._connections = Connections(self._options, self._settings)
        return await self._connections.open(node, command, events)

    async def close(self) -> None:
        """Cut every connection and wait until all are gone."""
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
