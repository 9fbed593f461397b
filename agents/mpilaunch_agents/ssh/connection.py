"""The connections of the agent `ssh`, made with asyncssh.

A host's settings come from OpenSSH (`settings`); asyncssh never reads the user's configuration files. All hosts share the
default settings, keys and jump hosts. Host keys are checked against those that `keys` finds. It never asks for a password
or a passphrase.
"""

from __future__ import annotations

import asyncio
import copy
import os
import re
import shlex
import socket
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import asyncssh

from mpilaunch.agent import AgentFailure, AgentOptions, Channel, ChannelEvents, Node
from mpilaunch.asyncio_timeouts import timeout
from mpilaunch.hosts.remote_names import name_problem
from mpilaunch.text import shell_line
from mpilaunch_agents.openssh import OpensshAgent
from mpilaunch_agents.ssh import masters
from mpilaunch_agents.ssh.channel import SshChannel, failure, one_line
from mpilaunch_agents.ssh.keys import Identities, KeyFiles, KnownKeys, read_public_keys
from mpilaunch_agents.ssh.settings import HostSettings, Route, SshSettings, connect_tcp, has_failed

WINDOW = 4 << 20
"""Receive window of a channel, in bytes."""

PASSED_ON = """
    Compression EnableSSHKeySign ForwardAgent GSSAPIAuthentication GSSAPIDelegateCredentials
    GSSAPIKeyExchange HostbasedAuthentication PKCS11Provider PreferredAuthentications PubkeyAuthentication SendEnv SetEnv
    TCPKeepAlive
"""
"""Settings passed to asyncssh with OpenSSH's values."""

OVERRIDES = {
    "CASignatureAlgorithms": "",
    "Ciphers": "^aes128-gcm@openssh.com,aes256-gcm@openssh.com",
    "HostKeyAlgorithms": "",
    # Prefer the classical exchange: the post-quantum ones take far more of the head's CPU time.
    "KexAlgorithms": "^curve25519-sha256,curve25519-sha256@libssh.org",
    "MACs": "",
    "RekeyLimit": "",
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "4",
}
"""Settings passed to asyncssh when they differ from OpenSSH's defaults; otherwise asyncssh gets the value here."""

HOP = re.compile(r"(?:ssh://)?(?:(?P<user>[^@]+)@)?(?:\[(?P<bracketed>[^\]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?/?")


Tunnel = asyncssh.SSHClientConnection | HostSettings
"""What leads on from a jump host: a connection to it, or its settings where a master connection to it answers."""


class _Client(asyncssh.SSHClient):
    """Decides about a host key that is not known; `refused` is the cause of a refusal."""

    def __init__(self, known: KnownKeys, accept_new: bool) -> None:
        self.refused = "host-key-changed" if known.any else "host-key-unknown"
        self._accepts = accept_new and not known.any

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Accept the key of a host without known keys if the settings allow it."""
        return self._accepts


class Connections:
    """Makes the connections of one agent and holds their shared state."""

    def __init__(self, options: AgentOptions, settings: SshSettings) -> None:
        asyncssh.set_log_level("CRITICAL")
        self._options = options
        self._settings = settings
        self._keys = KeyFiles()
        self._openssh = OpensshAgent(options)
        self._files: dict[str, int] = {}
        self._jumps: dict[str, asyncio.Task[Tunnel]] = {}
        self._jump_started: dict[str, float] = {}
        self._abandoned: list[asyncio.Task[Tunnel]] = []
        # The loop holds a reference to every open connection, so none vanishes from here before it is closed.
        self._connections: weakref.WeakSet[asyncssh.SSHClientConnection] = weakref.WeakSet()

    async def open(
        self, node: Node, route: asyncio.Task[Route], command: Sequence[str], events: ChannelEvents
    ) -> Channel:
        """Log in and start the command; raises AgentFailure."""
        limit, started = self._options.connect_timeout, time.monotonic()
        try:
            async with timeout(limit):
                settings, connection, by_master = await route
            if by_master:
                return await self._openssh.open(node, command, events)
            limit = min(limit, float(settings.get("connecttimeout") or limit))
            try:
                async with timeout(started + limit - time.monotonic()):
                    return await self._open(settings, connection, command, events)
            except (asyncio.TimeoutError, asyncio.CancelledError):
                self._abandon_jumps(settings.get("proxyjump"), started)
                raise
        except asyncio.TimeoutError as error:
            raise AgentFailure("timeout", str(error) or f"no answer within {limit:g} s") from error
        except Exception as error:
            raise failure(error) from error

    async def close(self) -> None:
        """Cut all connections and wait until they are closed; called once."""
        jumps = [*self._jumps.values(), *self._abandoned]
        for task in jumps:
            task.cancel()
        await asyncio.gather(*jumps, return_exceptions=True)
        await self._settings.close()
        await self._openssh.close()
        for connection in list(self._connections):
            connection.abort()
            await connection.wait_closed()
        for descriptor in self._files.values():
            os.close(descriptor)

    async def _open(
        self, settings: HostSettings, direct: socket.socket | None, command: Sequence[str], events: ChannelEvents
    ) -> SshChannel:
        connection = await self._connect(settings, await self._tunnel(settings, ()), direct)
        opening = asyncio.ensure_future(
            connection.create_session(
                lambda: SshChannel(connection, events),
                shell_line(command),
                encoding=None,
                window=WINDOW,
                request_pty=False,
                x11_forwarding=False,
            )
        )
        try:
            await asyncio.sleep(0)  # the request is sent
            acknowledge_at_once(connection.get_extra_info("socket"))
            _, session = await opening
        except BaseException:
            opening.cancel()
            connection.abort()
            raise
        return cast(SshChannel, session)

    async def _connect(
        self, settings: HostSettings, tunnel: Tunnel | None, direct: socket.socket | None = None
    ) -> asyncssh.SSHClientConnection:
        """Log in to a host, over a TCP connection or through another host's connection if given."""
        checking = settings.get("stricthostkeychecking").lower()
        known, identities = self._keys.known_keys(settings), self._keys.identities(settings)
        any_key = self._options.insecure_host_keys or checking in ("no", "off", "false")
        client = _Client(known, checking == "accept-new")
        defaults = await self._settings.defaults()
        try:
            connection = await asyncssh.connect(
                settings.host,
                settings.port,
                username=settings.get("user"),
                config=[self._file(_asyncssh_config(settings, defaults))],
                tunnel=None if isinstance(tunnel, HostSettings) else tunnel,
                sock=direct,
                proxy_command=_proxy_command(settings, tunnel if isinstance(tunnel, HostSettings) else None),
                client_factory=lambda: client,
                known_hosts=None if any_key else (known.trusted, known.authorities, known.revoked),
                host_key_alias=settings.get("hostkeyalias") or None,
                x509_trusted_certs=None,
                x509_trusted_cert_paths=[],
                canonicalize_hostname=False,
                connect_timeout=None,
                login_timeout=0,
                password_auth=False,
                kbdint_auth=False,
                # Copies, because asyncssh stores the negotiated algorithm in them.
                client_keys=[copy.copy(pair) for pair in identities.pairs] or None,
                **_ssh_agent(settings),
            )
        except asyncssh.HostKeyNotVerifiable as error:
            raise AgentFailure(client.refused, one_line(error)) from error
        except asyncssh.PermissionDenied as error:
            raise AgentFailure("key-refused", one_line(error) + _unused_keys(identities) + masters.hint(settings)) from error
        self._connections.add(connection)
        return connection

    # Jump hosts

    async def _tunnel(self, settings: HostSettings, under_way: tuple[str, ...]) -> Tunnel | None:
        """Return what leads to a host from its jump host, None for none; hosts with the same jump hosts share it.

        Args:
            under_way: jump hosts whose connection requires this host, to detect a cycle.
        """
        jump = settings.get("proxyjump")
        tunnel = None
        path = ""
        for hop in jump.replace(" ", "").split(",") if jump else ():
            path += ("," if path else "") + hop
            if path in under_way:
                raise AgentFailure("agent-failed", f"ProxyJump {jump} leads back to itself")
            if path not in self._jumps or has_failed(self._jumps[path]) or _is_closed(self._jumps[path]):
                self._jumps[path] = asyncio.ensure_future(self._connect_hop(hop, tunnel, (*under_way, path)))
                self._jump_started[path] = time.monotonic()
            # The timeout of one host must not cancel a jump host that others wait for.
            tunnel = await asyncio.shield(self._jumps[path])
        return tunnel

    def _abandon_jumps(self, jump: str, before: float) -> None:
        """Have the next attempt reconnect the jump hosts connected before a time: a broken connection may look open."""
        for path in list(self._jumps):
            if f"{jump.replace(' ', '')},".startswith(f"{path},") and self._jump_started[path] < before:
                self._abandoned.append(self._jumps.pop(path))

    async def _connect_hop(self, hop: str, tunnel: Tunnel | None, under_way: tuple[str, ...]) -> Tunnel:
        match = HOP.fullmatch(hop)
        if match is None:
            raise AgentFailure("agent-failed", f"ProxyJump '{hop}' is not of the form [user@]host[:port]")
        host, port = match["bracketed"] or match["host"], int(match["port"]) if match["port"] else None
        settings = await self._settings.of(host, match["user"], port, ())
        if await masters.answers(settings):
            return settings
        tunnel = tunnel or await self._tunnel(settings, under_way)
        return await self._connect(settings, tunnel, None if tunnel or not settings.direct else await connect_tcp(settings))

    def _file(self, text: str) -> str:
        """Return the path of a file in memory with this text: asyncssh reads settings only from files."""
        if text not in self._files:
            descriptor = self._files[text] = os.memfd_create("ssh_config")
            with open(descriptor, "w", closefd=False) as file:
                file.write(text)
        return f"/proc/self/fd/{self._files[text]}"


def acknowledge_at_once(connection: socket.socket | None) -> None:
    """Keep the kernel from delaying its next acknowledgements (tcp(7), TCP_QUICKACK).

    After the login sshd sends its host keys and then the answer to the request for a session. Nagle's algorithm holds the
    answer back until the host keys are acknowledged: up to 40 ms otherwise.
    """
    if connection is not None:  # a proxy command has none
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _asyncssh_config(settings: HostSettings, defaults: HostSettings) -> str:
    """Return the settings for asyncssh in ssh_config's syntax, without Host, Match or Include."""
    lines = [(name, shlex.quote(value)) for name in PASSED_ON.split() for value in settings.all(name)]
    for name, override in OVERRIDES.items():
        value = settings.get(name)
        if value == defaults.get(name):
            value = override
        if value:
            # RekeyLimit is a size and a time, where asyncssh does not accept 0 for "no limit".
            lines.append((name, value.removesuffix(" 0") if name == "RekeyLimit" else shlex.quote(value)))
    return "".join(f"{name} {value}\n" for name, value in lines)


def _proxy_command(settings: HostSettings, jump: HostSettings | None) -> Sequence[str] | None:
    """Return ProxyCommand as OpenSSH runs it, with the user's shell, or what connects through the master of a jump host."""
    if jump is not None:
        return masters.forward_command(jump, settings.host, settings.port)
    command = settings.get("proxycommand")
    if not command:
        return None
    # The names that the configuration gives reach the shell as well.
    refused = name_problem(settings.host, settings.get("user"))
    if refused:
        raise AgentFailure("agent-failed", f"ProxyCommand: {refused}")
    return [os.environ.get("SHELL") or "/bin/sh", "-c", "exec " + settings.expand(command)]


def _ssh_agent(settings: HostSettings) -> dict[str, Any]:
    """Return the arguments that select the keys of the ssh agent."""
    arguments: dict[str, Any] = {"agent_identities": None}
    path = settings.values.get("identityagent", ["SSH_AUTH_SOCK"])[0]
    if path.lower() == "none":
        arguments["agent_path"] = None
    elif re.fullmatch(r"\$\w+", path):
        arguments["agent_path"] = os.environ.get(path[1:])
    elif path != "SSH_AUTH_SOCK":
        arguments["agent_path"] = settings.path(path)
    if settings.get("identitiesonly").lower() in ("yes", "true"):
        arguments["agent_identities"] = read_public_keys(settings) or None
        if not arguments["agent_identities"]:
            arguments["agent_path"] = None
    return arguments


def _unused_keys(identities: Identities) -> str:
    """Return a note about private keys that were not used, with the reason, "" for none."""
    text = ""
    if identities.unprotected:
        text += f"; unprotected private key, not used (chmod 600): {', '.join(identities.unprotected)}"
    if identities.locked:
        text += f"; private key with a passphrase, used only through an ssh agent: ssh-add {shlex.join(identities.locked)}"
    return text


def _is_closed(task: asyncio.Task[Tunnel]) -> bool:
    return task.done() and isinstance(tunnel := task.result(), asyncssh.SSHClientConnection) and tunnel.is_closed()
