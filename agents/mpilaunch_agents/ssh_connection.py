"""The connections of the agent `ssh`: the only module that touches asyncssh.

Configuration is evaluated for each host, as its Host and Match blocks demand; private keys, known hosts and jump hosts are
shared by all hosts. Every failure becomes an AgentFailure here, in one table. Passwords and passphrases are never asked for.
"""

from __future__ import annotations

import asyncio
import copy
import errno
import getpass
import os
import re
import shlex
import signal
import socket
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import asyncssh
from asyncssh.config import SSHClientConfig

from mpilaunch.agent import AgentFailure, AgentOptions, ChannelEnd, ChannelEvents
from mpilaunch.allocation import Node
from mpilaunch_agents.openssh import classify_ssh_words

CONFIG_FILES = ("~/.ssh/config", "/etc/ssh/ssh_config")
KEY_FILES = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ecdsa_sk", "~/.ssh/id_ed25519", "~/.ssh/id_ed25519_sk")
USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
SSH_PORT = 22

WINDOW = 4 << 20
"""Bytes of output that may be under way from one node."""

UNWRITTEN = 1 << 18
"""Bytes of input above which writing pauses."""

KEEPALIVE_SECONDS = 15
KEEPALIVE_COUNT = 4

FAST_KEX = "^curve25519-sha256,curve25519-sha256@libssh.org"
FAST_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
"""Tried first, unless the configuration says otherwise: the post-quantum exchanges cost the head 10 times the CPU time."""

HOP = re.compile(r"(?:ssh://)?(?:(?P<user>[^@]+)@)?(?:\[(?P<bracketed>[^\]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?/?")

ERRNO_CAUSES = {
    errno.ECONNREFUSED: "connection-refused",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EHOSTDOWN: "unreachable",
    errno.ECONNRESET: "connection-closed",
    errno.EPIPE: "connection-closed",
}
ERROR_CAUSES: tuple[tuple[type[BaseException], str], ...] = (
    (socket.gaierror, "host-unknown"),
    (asyncio.TimeoutError, "timeout"),
    (asyncssh.HostKeyNotVerifiable, "host-key-unknown"),
    (asyncssh.PermissionDenied, "key-refused"),
    (asyncssh.ConnectionLost, "connection-closed"),
)


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

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Tell a host that nobody knows from one whose key has changed."""
        known = self._known_hosts.match(host, addr, port if port != SSH_PORT else None)
        self.refused = "host-key-changed" if known[0] else "host-key-unknown"
        return self._accept_new and not known[0]


class SshChannel(asyncssh.SSHClientSession[bytes]):
    """A command on a node, and the connection that carries it and nothing else."""

    def __init__(self, connection: asyncssh.SSHClientConnection, events: ChannelEvents) -> None:
        self._connection = connection
        self._events = events
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._live = False
        self._exit_code: int | None = None

    # What the head asks for

    def write(self, data: bytes) -> None:
        """Send bytes to the command's stdin."""
        if self._live and self._channel is not None:
            with suppress(OSError):
                self._channel.write(data)

    def write_eof(self) -> None:
        """Close the command's stdin."""
        if self._live and self._channel is not None:
            with suppress(OSError):
                self._channel.write_eof()

    def abort(self) -> None:
        """Cut the connection."""
        if self._live:
            self._connection.abort()

    # What asyncssh tells

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Take the channel; the command is not running yet."""
        self._channel = chan
        chan.set_write_buffer_limits(UNWRITTEN)

    def session_started(self) -> None:
        """From here on the head hears of this channel."""
        self._live = True

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Pass on output."""
        if datatype == asyncssh.EXTENDED_DATA_STDERR:
            self._events.stderr_received(data)
        else:
            self._events.data_received(data)

    def eof_received(self) -> bool:
        """Keep our direction open: a command may close its stdout and go on."""
        return True

    def pause_writing(self) -> None:
        """Pass on that the buffer is full."""
        if self._live:
            self._events.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the buffer has room."""
        if self._live:
            self._events.resume_writing()

    def exit_status_received(self, status: int) -> None:
        """Remember how the command ended."""
        self._exit_code = status

    def exit_signal_received(self, signal_name: str, core_dumped: bool, msg: str, lang: str) -> None:
        """Remember which signal ended the command."""
        number = getattr(signal, f"SIG{signal_name}", None)
        self._exit_code = 128 + number if number is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        """End the channel, and the connection with it."""
        if not self._live:
            return
        self._live = False
        self._connection.close()
        lost = failure(exc) if exc is not None else None
        self._events.closed(ChannelEnd(self._exit_code, lost.detail if lost else "", lost.cause if lost else ""))


class Connector:
    """Makes the connections of one agent and holds what they share.

    Args:
        options: what the user says to every agent.
        settings: lines of ssh configuration that come before the user's files; they are not for jump hosts.
    """

    def __init__(self, options: AgentOptions, settings: Sequence[str]) -> None:
        asyncssh.set_log_level("CRITICAL")
        self._options = options
        # asyncssh reads configuration from files only; this one is on no disk.
        self._settings = os.memfd_create("ssh-options")
        os.write(self._settings, "".join(line + "\n" for line in settings).encode())
        # What asyncssh would look up for each connection is given to it instead; it takes the configuration from here.
        self._base = asyncssh.SSHClientConnectionOptions(config=None, client_keys=None, known_hosts=None)
        self._files = [path for path in (Path(name).expanduser() for name in CONFIG_FILES) if os.access(path, os.R_OK)]
        self._keys: dict[tuple[tuple[str, ...], tuple[str, ...]], list[asyncssh.SSHKeyPair]] = {}
        self._known_hosts: dict[tuple[str, ...], asyncssh.SSHKnownHosts] = {}
        self._jumps: dict[str, asyncio.Task[asyncssh.SSHClientConnection]] = {}
        # One that is not closed yet is held by the loop, so none is lost from here too early.
        self._connections: weakref.WeakSet[asyncssh.SSHClientConnection] = weakref.WeakSet()

    async def open(self, node: Node, command: Sequence[str], events: ChannelEvents) -> SshChannel:
        """Connect and start the command; raises AgentFailure."""
        limit = self._options.connect_timeout
        try:
            config = self._config(node.name, node.user, node.port, [f"/proc/self/fd/{self._settings}", *self._files])
            limit = min(limit, config.get("ConnectTimeout") or limit)
            return await asyncio.wait_for(self._open(node.name, config, command, events), limit)
        except asyncio.TimeoutError as error:
            raise AgentFailure("timeout", str(error) or f"no answer within {limit:g} s") from error
        except Exception as error:
            raise failure(error) from error

    async def close(self) -> None:
        """Cut all connections and wait until they are gone; called once."""
        for task in self._jumps.values():
            task.cancel()
        await asyncio.gather(*self._jumps.values(), return_exceptions=True)
        for connection in list(self._connections):
            connection.abort()
            await connection.wait_closed()
        os.close(self._settings)

    async def _open(self, host: str, config: Any, command: Sequence[str], events: ChannelEvents) -> SshChannel:
        connection = await self._connect(host, config, await self._tunnel(config, ()))
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

    async def _connect(self, host: str, config: Any, tunnel: Any) -> asyncssh.SSHClientConnection:
        """Connect to a host, through another connection unless that is None, and log in."""
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
                client_factory=lambda: client,
                known_hosts=None if self._options.insecure_host_keys or checking in ("no", "off") else known_hosts,
                kex_algs=() if config.get("KexAlgorithms") else FAST_KEX,
                encryption_algs=() if config.get("Ciphers") else FAST_CIPHERS,
                canonicalize_hostname=False,
                connect_timeout=None,
                login_timeout=0,
                keepalive_interval=config.get("ServerAliveInterval", KEEPALIVE_SECONDS),
                keepalive_count_max=config.get("ServerAliveCountMax", KEEPALIVE_COUNT),
                password_auth=False,
                kbdint_auth=False,
                ignore_encrypted=True,
                **self._identities(config),
            )
        except asyncssh.HostKeyNotVerifiable as error:
            raise AgentFailure(client.refused or "host-key-unknown", _one_line(error)) from error
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
            if path not in self._jumps:
                self._jumps[path] = asyncio.ensure_future(self._connect_hop(hop.strip(), tunnel, (*under_way, path)))
            # One host's time may be over while others still wait for the jump host.
            tunnel = await asyncio.shield(self._jumps[path])
        return tunnel

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


def failure(error: BaseException) -> AgentFailure:
    """Return why a connection was not made, or was lost."""
    if isinstance(error, AgentFailure):
        return error
    words = _one_line(error)
    for kind, cause in ERROR_CAUSES:
        if isinstance(error, kind):
            return AgentFailure(cause, words)
    if isinstance(error, OSError):
        # A host with several addresses: asyncio joins the errors into one text.
        number = error.errno or next((int(found) for found in re.findall(r"\[Errno (\d+)\]", words)), 0)
        if number in ERRNO_CAUSES:
            return AgentFailure(ERRNO_CAUSES[number], words)
    return AgentFailure(classify_ssh_words(words) or "agent-failed", words)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
