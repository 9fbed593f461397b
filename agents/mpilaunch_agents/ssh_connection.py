"""The connections of the agent `ssh`, made with asyncssh.

Configuration is evaluated for each host, as its Host and Match blocks demand; private keys, known hosts and jump hosts are
shared by all hosts. Passwords and passphrases are never asked for.
"""

from __future__ import annotations

import asyncio
import copy
import getpass
import os
import re
import shlex
import socket
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import asyncssh
from asyncssh.config import SSHClientConfig
from asyncssh.constants import MSG_IGNORE
from asyncssh.encryption import get_default_encryption_algs, get_encryption_algs
from asyncssh.kex import get_default_kex_algs, get_kex_algs

from mpilaunch.agent import AgentFailure, AgentOptions, ChannelEvents
from mpilaunch.allocation import Node
from mpilaunch_agents.ssh import CONFIG_FILES, SSH_PORT
from mpilaunch_agents.ssh_channel import SshChannel, failure, one_line
from mpilaunch_agents.ssh_early import EarlyConnection

KEY_FILES = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ecdsa_sk", "~/.ssh/id_ed25519", "~/.ssh/id_ed25519_sk")
USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")

WINDOW = 4 << 20
"""Bytes of output that may be under way from one node."""

KEEPALIVE_SECONDS = 15
KEEPALIVE_COUNT = 4

FAST_KEX = (b"curve25519-sha256", b"curve25519-sha256@libssh.org")
FAST_CIPHERS = (b"aes128-gcm@openssh.com", b"aes256-gcm@openssh.com")
"""What is tried first, unless the configuration says otherwise or this machine's OpenSSL has it not: above all not the
post-quantum key exchanges, which cost the head far more CPU time."""

HOP = re.compile(r"(?:ssh://)?(?:(?P<user>[^@]+)@)?(?:\[(?P<bracketed>[^\]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?/?")


class _Config(SSHClientConfig):
    """asyncssh's reader of ssh configurations, with the one setting added that clusters rely on and it leaves out."""

    _handlers = {  # noqa: RUF012
        **SSHClientConfig._handlers,
        "stricthostkeychecking": ("StrictHostKeyChecking", SSHClientConfig._set_string),
    }


class _Client(asyncssh.SSHClient):
    """Judges a host key that is not among the known ones, and remembers what was wrong with it."""

    def __init__(self, known_hosts: asyncssh.SSHKnownHosts, accept_new: bool) -> None:
        self.refused = ""
        self._known_hosts = known_hosts
        self._accept_new = accept_new

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """Send no empty packet before each other one, where the cipher needs none.

        asyncssh does, against what can be learned of ciphers in CBC mode (RFC 4251, 9.3.1); that is half of all packets.
        """
        send = conn.send_packet

        def send_packet(kind: int, *parts: bytes, **more: Any) -> None:
            if kind != MSG_IGNORE or "-cbc" in conn.get_extra_info("send_cipher", "-cbc"):
                send(kind, *parts, **more)

        vars(conn)["send_packet"] = send_packet

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Tell a host that nobody knows from one whose key has changed."""
        known = self._known_hosts.match(host, addr, port if port != SSH_PORT else None)
        self.refused = "host-key-changed" if known[0] else "host-key-unknown"
        return self._accept_new and not known[0]


class Connections:
    """Makes the connections of one agent and holds what they share.

    Args:
        options: what the user says to every agent.
        settings: lines of ssh configuration that come before the user's files; they are not for jump hosts.
    """

    def __init__(self, options: AgentOptions, settings: Sequence[str]) -> None:
        asyncssh.set_log_level("CRITICAL")
        self._options = options
        # asyncssh reads configuration from files only; this one has no name.
        try:
            self._settings = os.memfd_create("ssh-options")
        except AttributeError:  # Python was built for a C library without it, glibc before 2.27
            import tempfile

            with tempfile.TemporaryFile() as file:
                self._settings = os.dup(file.fileno())
        os.write(self._settings, "".join(line + "\n" for line in settings).encode())
        # What asyncssh would look up for each connection is given to it instead; it takes the configuration from here.
        self._base = asyncssh.SSHClientConnectionOptions(config=None, client_keys=None, known_hosts=None)
        self._algorithms = {
            "KexAlgorithms": ("kex_algs", _put_first(FAST_KEX, get_kex_algs(), get_default_kex_algs())),
            "Ciphers": ("encryption_algs", _put_first(FAST_CIPHERS, get_encryption_algs(), get_default_encryption_algs())),
        }
        self._files = [path for path in (Path(name).expanduser() for name in CONFIG_FILES) if os.access(path, os.R_OK)]
        self._keys: dict[tuple[tuple[str, ...], tuple[str, ...]], list[asyncssh.SSHKeyPair]] = {}
        self._known_hosts: dict[tuple[str, ...], asyncssh.SSHKnownHosts] = {}
        self._jumps: dict[str, asyncio.Task[asyncssh.SSHClientConnection]] = {}
        self._jumped_at: dict[str, float] = {}
        self._given_up: list[asyncio.Task[asyncssh.SSHClientConnection]] = []
        # One that is not closed yet is held by the loop, so none is lost from here too early.
        self._connections: weakref.WeakSet[asyncssh.SSHClientConnection] = weakref.WeakSet()

    async def open(
        self, node: Node, command: Sequence[str], events: ChannelEvents, early: EarlyConnection | None = None
    ) -> SshChannel:
        """Connect, unless `early` is the connection, and start the command; raises AgentFailure."""
        limit, began = self._options.connect_timeout, time.monotonic()
        try:
            config = self._config(node.name, node.user, node.port, [f"/proc/self/fd/{self._settings}", *self._files])
            limit = min(limit, config.get("ConnectTimeout") or limit)
            try:
                return await asyncio.wait_for(self._open(node.name, config, command, events, early), limit)
            except (asyncio.TimeoutError, asyncio.CancelledError):
                self._give_up_jumps(str(config.get("ProxyJump") or ""), began)
                raise
        except asyncio.TimeoutError as error:
            raise AgentFailure("timeout", str(error) or f"no answer within {limit:g} s") from error
        except Exception as error:
            raise failure(error) from error

    async def close(self) -> None:
        """Cut all connections and wait until they are gone; called once."""
        jumps = [*self._jumps.values(), *self._given_up]
        for task in jumps:
            task.cancel()
        await asyncio.gather(*jumps, return_exceptions=True)
        for connection in list(self._connections):
            connection.abort()
            await connection.wait_closed()
        os.close(self._settings)

    async def _open(
        self, host: str, config: Any, command: Sequence[str], events: ChannelEvents, early: EarlyConnection | None
    ) -> SshChannel:
        tunnel = await self._tunnel(config, ())
        connected = await early.take() if early is not None and early.target == _direct_target(host, config) else None
        connection = await self._connect(host, config, tunnel, connected)
        try:
            _, session = await connection.create_session(
                lambda: SshChannel(connection, events),
                shlex.join(command),
                encoding=None,
                window=WINDOW,
                request_pty=False,
                x11_forwarding=False,
            )
        except BaseException:
            connection.abort()
            raise
        return cast(SshChannel, session)

    async def _connect(
        self, host: str, config: Any, tunnel: Any, connected: socket.socket | None = None
    ) -> asyncssh.SSHClientConnection:
        """Connect to a host, through another connection unless that is None, and log in; `connected` saves the first."""
        checking = str(config.get("StrictHostKeyChecking") or "ask").lower()
        known_hosts = self._read_known_hosts(config)
        client = _Client(known_hosts, checking == "accept-new")
        base = copy.copy(self._base)
        base.config = config
        try:
            connection = await asyncssh.connect(
                host,
                options=base,
                config=None,
                tunnel=tunnel,
                sock=connected,
                client_factory=lambda: client,
                known_hosts=None if self._options.insecure_host_keys or checking in ("no", "off") else known_hosts,
                canonicalize_hostname=False,
                connect_timeout=None,
                login_timeout=0,
                keepalive_interval=config.get("ServerAliveInterval", KEEPALIVE_SECONDS),
                keepalive_count_max=config.get("ServerAliveCountMax", KEEPALIVE_COUNT),
                password_auth=False,
                kbdint_auth=False,
                ignore_encrypted=True,
                **self._identities(config),
                **dict(offered for name, offered in self._algorithms.items() if not config.get(name)),
            )
        except asyncssh.HostKeyNotVerifiable as error:
            raise AgentFailure(client.refused or "host-key-unknown", one_line(error)) from error
        self._connections.add(connection)
        return connection

    # Jump hosts

    async def _tunnel(self, config: Any, under_way: tuple[str, ...]) -> asyncssh.SSHClientConnection | None:
        """Return the connection through which a host is reached, None for directly; hosts with the same jumps share it.

        Args:
            config: the host's.
            under_way: the jumps for whose sake this host is connected.
        """
        jump = str(config.get("ProxyJump") or "")
        tunnel = None
        path = ""
        for hop in jump.split(",") if jump else ():
            path += ("," if path else "") + hop.strip()
            if path in under_way:
                raise AgentFailure("agent-failed", f"ProxyJump {jump} leads back to itself")
            if path not in self._jumps or _has_failed(self._jumps[path]):
                self._jumps[path] = asyncio.ensure_future(self._connect_hop(hop.strip(), tunnel, (*under_way, path)))
                self._jumped_at[path] = time.monotonic()
            # One host's time may be over while others still wait for the jump host.
            tunnel = await asyncio.shield(self._jumps[path])
        return tunnel

    def _give_up_jumps(self, jump: str, before: float) -> None:
        """Let the next attempt connect these jump hosts anew, if they were before: one that is cut off says nothing."""
        for path in list(self._jumps):
            if f"{jump},".replace(" ", "").startswith(f"{path},") and self._jumped_at[path] < before:
                self._given_up.append(self._jumps.pop(path))

    async def _connect_hop(self, hop: str, tunnel: Any, under_way: tuple[str, ...]) -> asyncssh.SSHClientConnection:
        match = HOP.fullmatch(hop)
        if match is None:
            raise AgentFailure("agent-failed", f"ProxyJump '{hop}' is not of the form [user@]host[:port]")
        host, port = match["bracketed"] or match["host"], int(match["port"]) if match["port"] else None
        config = self._config(host, match["user"], port, self._files)
        return await self._connect(host, config, tunnel or await self._tunnel(config, under_way))

    # What is evaluated for each host, and what is read once

    def _config(self, host: str, user: str | None, port: int | None, files: Sequence[str | Path]) -> Any:
        who = (getpass.getuser(), user or (), host, port or ())
        config = _Config.load(None, files, False, False, False, *who)
        if config.has_match_final():
            config = _Config.load(config, files, True, False, True, *who)
        return config

    def _identities(self, config: Any) -> dict[str, Any]:
        """Return the settings that say with which keys to log in."""
        files = tuple(config.get("IdentityFile") or KEY_FILES)
        certificates = tuple(config.get("CertificateFile") or ())
        if (files, certificates) not in self._keys:
            self._keys[files, certificates] = _read_keys(files, certificates)
        # A connection writes into its key pairs which signature it chose: each gets copies, of the same key.
        found: dict[str, Any] = {"client_keys": [copy.copy(pair) for pair in self._keys[files, certificates]]}
        if config.get("IdentitiesOnly"):
            found["agent_identities"] = _read_identities(files) or None
            if not found["agent_identities"]:
                found["agent_path"] = None
        return found

    def _read_known_hosts(self, config: Any) -> asyncssh.SSHKnownHosts:
        files = tuple(config.get("UserKnownHostsFile", USER_KNOWN_HOSTS))
        files += tuple(config.get("GlobalKnownHostsFile", GLOBAL_KNOWN_HOSTS))
        if files not in self._known_hosts:
            known_hosts = self._known_hosts[files] = asyncssh.import_known_hosts("")
            for name in files:
                with suppress(OSError):
                    for line in Path(name).expanduser().read_text(errors="replace").splitlines():
                        # OpenSSH passes over lines that it does not understand.
                        with suppress(ValueError):
                            known_hosts.load(line)
        return self._known_hosts[files]


def _direct_target(host: str, config: Any) -> tuple[str, int] | None:
    """Return host and port that a configuration connects to, None when it says how."""
    if any(config.get(name) for name in ("ProxyJump", "ProxyCommand", "BindAddress", "AddressFamily")):
        return None
    return str(config.get("Hostname") or host), int(config.get("Port") or SSH_PORT)


def _put_first(wanted: Sequence[bytes], possible: Sequence[bytes], usual: Sequence[bytes]) -> list[str]:
    """Return the algorithms to offer: those that are wanted and possible, then what asyncssh would offer."""
    first = [name for name in wanted if name in possible]
    return [name.decode() for name in (*first, *(name for name in usual if name not in first))]


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None or task.result().is_closed())


def _read_keys(files: Sequence[str], certificates: Sequence[str]) -> list[asyncssh.SSHKeyPair]:
    """Return the private keys that can be read without a passphrase, each also with its certificate."""
    loaded = []
    for name in certificates:
        with suppress(OSError, ValueError):
            loaded.append(asyncssh.read_certificate(Path(name).expanduser()))
    pairs: list[asyncssh.SSHKeyPair] = []
    for name in files:
        with suppress(OSError, ValueError):
            pairs += asyncssh.load_keypairs(str(Path(name).expanduser()), None, loaded, ignore_encrypted=True)
    return pairs


def _read_identities(files: Sequence[str]) -> list[bytes]:
    """Return the public halves of the keys, by which the ssh agent's keys are chosen."""
    found = []
    for name in files:
        for candidate in (name, name + ".pub"):
            with suppress(OSError, ValueError):
                found.append(asyncssh.read_public_key(Path(candidate).expanduser()).public_data)
    return found
