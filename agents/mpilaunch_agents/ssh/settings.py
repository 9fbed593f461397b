"""The settings of OpenSSH's client for a host, as `ssh -G` prints them, and the TCP connection that they describe.

It never reads a configuration file itself, so OpenSSH alone evaluates Host, Match and Include, and decides which files it
trusts (by owner and mode, in the home directory of the password database rather than $HOME). Nothing here needs asyncssh.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from mpilaunch.agent import AgentFailure
from mpilaunch.asyncio_timeouts import timeout
from mpilaunch.hosts.remote_names import name_problem
from mpilaunch_agents.capture import capture
from mpilaunch_agents.openssh import classify_ssh_message

SSH_PORT = 22
MAX_QUERIES = 16
"""Maximum number of `ssh -G` at a time."""
FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
TOKEN = re.compile(r"%(.)")
VARIABLE = re.compile(r"\$\{(\w+)\}")


class HostSettings(NamedTuple):
    """The settings of one host.

    Attributes:
        original: the host name passed to ssh.
        values: lists of values by name in lower case; some settings may be given several times.
    """

    original: str
    values: dict[str, list[str]]

    def get(self, name: str) -> str:
        """Return the value of a setting, "" when it is unset or none."""
        values = self.values.get(name.lower(), [])
        return values[0] if values and values[0].lower() != "none" else ""

    def all(self, name: str) -> list[str]:
        """Return all values of a setting that may be given several times."""
        return [value for value in self.values.get(name.lower(), []) if value.lower() != "none"]

    @property
    def host(self) -> str:
        """The name or address to connect to, by which its host key is looked up."""
        return self.get("hostname") or self.original

    @property
    def direct(self) -> bool:
        """Whether no jump host and no proxy command leads to the host."""
        return not (self.get("proxyjump") or self.get("proxycommand"))

    @property
    def port(self) -> int:
        return int(self.get("port") or SSH_PORT)

    def expand(self, text: str) -> str:
        """Return a value with its tokens expanded (ssh_config(5), TOKENS); raises AgentFailure."""

        def token(match: re.Match[str]) -> str:
            if match[1] not in tokens:
                raise AgentFailure("agent-failed", f"'{text}': the agent ssh does not expand %{match[1]}; --agent openssh does")
            return tokens[match[1]]

        name, own = socket.gethostname(), pwd.getpwuid(os.getuid())
        tokens = {
            "%": "%",
            "d": own.pw_dir,
            "h": self.host,
            "i": str(own.pw_uid),
            "j": self.get("proxyjump"),
            "k": self.get("hostkeyalias") or self.host,
            "L": name.partition(".")[0],
            "l": name,
            "n": self.original,
            "p": str(self.port),
            "r": self.get("user"),
            "u": own.pw_name,
        }
        return TOKEN.sub(token, text)

    def path(self, text: str) -> str:
        """Return a path with `~`, variables and tokens expanded as by OpenSSH: `~` is not $HOME; raises AgentFailure."""
        if text.startswith("~"):
            user, slash, rest = text[1:].partition("/")
            try:
                home = pwd.getpwnam(user).pw_dir if user else pwd.getpwuid(os.getuid()).pw_dir
            except KeyError:
                raise AgentFailure("agent-failed", f"'{text}': this machine has no such user") from None
            text = home + slash + rest
        return self.expand(VARIABLE.sub(lambda match: os.environ.get(match[1], ""), text))


class SshSettings:
    """Queries OpenSSH for the settings of hosts."""

    def __init__(self) -> None:
        self._defaults: asyncio.Task[HostSettings] | None = None
        self._slots = asyncio.Semaphore(MAX_QUERIES)

    async def of(self, host: str, user: str | None, port: int | None, options: Sequence[str]) -> HostSettings:
        """Return the settings of a host; raises AgentFailure.

        Args:
            user, port: given by the user, None if not.
            options: settings that override those of the configuration files.
        """
        self._query_defaults()  # they are needed with the settings of any host
        refused = name_problem(host, user)
        if refused:
            raise AgentFailure("agent-failed", refused)
        argv = [word for option in options for word in ("-o", option)]
        argv += ["-l", user] if user is not None else []
        argv += ["-p", str(port)] if port is not None else []
        return await self._query(host, argv)

    async def defaults(self) -> HostSettings:
        """Return OpenSSH's default settings, queried once; raises AgentFailure."""
        return await asyncio.shield(self._query_defaults())

    async def close(self) -> None:
        if self._defaults is not None:
            self._defaults.cancel()
            await asyncio.gather(self._defaults, return_exceptions=True)

    def _query_defaults(self) -> asyncio.Task[HostSettings]:
        if self._defaults is None or has_failed(self._defaults):
            self._defaults = asyncio.ensure_future(self._query("localhost", ["-F", "none"]))
        return self._defaults

    async def _query(self, host: str, argv: Sequence[str]) -> HostSettings:
        async with self._slots:
            code, output, errors = await capture(["ssh", "-T", "-G", *argv, "--", host])
        if code or not output:
            lines = errors.strip().splitlines() or [f"ssh -G: exit code {code}"]
            raise AgentFailure(classify_ssh_message(errors) or "agent-failed", lines[0].strip())
        values: dict[str, list[str]] = {}
        for name, _, value in (line.partition(" ") for line in output.splitlines()):
            values.setdefault(name.lower(), []).append(value)
        return HostSettings(host, values)


def has_failed(task: asyncio.Task[Any]) -> bool:
    """Return whether a task has ended without a result."""
    return task.done() and (task.cancelled() or task.exception() is not None)


class Route(NamedTuple):
    """How a host is reached.

    Attributes:
        connection: the TCP connection to it unless a jump host, a proxy command or a master connection leads there.
        by_master: a master connection of the user's own ssh does.
    """

    settings: HostSettings
    connection: socket.socket | None
    by_master: bool = False

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()


async def connect_tcp(settings: HostSettings) -> socket.socket:
    """Return a TCP connection to a host from which nothing has been read; raises OSError and asyncio.TimeoutError."""
    bind, limit = settings.get("bindaddress"), settings.get("connecttimeout")
    try:
        async with timeout(float(limit) if limit else None):
            transport, _ = await asyncio.get_running_loop().create_connection(
                _Unread,
                settings.host,
                settings.port,
                family=FAMILIES.get(settings.get("addressfamily").lower(), socket.AF_UNSPEC),
                local_addr=(bind, 0) if bind else None,
            )
    except asyncio.TimeoutError as error:  # of the limit, or of the kernel with a message
        raise asyncio.TimeoutError(str(error) or f"no answer within {limit} s") from None
    try:
        connection: socket.socket = transport.get_extra_info("socket").dup()
    finally:
        transport.close()
    connection.setblocking(False)
    return connection


class _Unread(asyncio.Protocol):
    """Leaves the host's first bytes in the socket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.ReadTransport, transport).pause_reading()
