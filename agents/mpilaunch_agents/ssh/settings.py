"""The settings of OpenSSH's client for a host, as `ssh -G` prints them; it never reads a configuration file itself.

So OpenSSH alone evaluates Host, Match and Include, and decides which files it trusts (by owner and mode, in the home directory
of the password database rather than $HOME).
"""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from mpilaunch.agent import AgentFailure
from mpilaunch.hosts.remote_names import name_problem
from mpilaunch_agents.capture import capture
from mpilaunch_agents.openssh import classify_ssh_message

SSH_PORT = 22
MAX_QUERIES = 16
"""Maximum number of `ssh -G` at a time."""
TOKEN = re.compile(r"%(.)")
VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class HostSettings:
    """The settings of one host.

    Attributes:
        original: the host name passed to ssh.
        values: lists of values by name in lower case; some settings may be given several times.
    """

    original: str
    values: dict[str, list[str]] = field(default_factory=dict)

    def get(self, name: str) -> str:
        """Return the value of a setting, "" when it is unset or none."""
        values = self.values.get(name.lower(), [])
        return values[0] if values and values[0].lower() != "none" else ""

    def all(self, name: str) -> list[str]:
        """Return all values of a setting that may be given several times."""
        return [value for value in self.values.get(name.lower(), []) if value.lower() != "none"]

    def is_set(self, name: str) -> bool:
        """Return whether a setting is yes."""
        return self.get(name).lower() in ("yes", "true")

    @property
    def host(self) -> str:
        """The name or address to connect to, by which its host key is looked up."""
        return self.get("hostname") or self.original

    @property
    def port(self) -> int:
        """The port to connect to."""
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
        """Return a path with `~`, variables and tokens expanded; raises AgentFailure."""
        text = VARIABLE.sub(lambda match: os.environ.get(match[1], ""), home_path(text))
        return self.expand(text)


def home_path(text: str) -> str:
    """Return a path with a leading `~` or `~user` expanded as by OpenSSH: from the password database, not from $HOME."""
    if not text.startswith("~"):
        return text
    user, slash, rest = text[1:].partition("/")
    try:
        home = pwd.getpwnam(user).pw_dir if user else pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        raise AgentFailure("agent-failed", f"'{text}': this machine has no such user") from None
    return home + slash + rest


class SshSettings:
    """Queries OpenSSH for the settings of hosts."""

    def __init__(self) -> None:
        self._defaults: asyncio.Task[HostSettings] | None = None
        self._prefetched: dict[tuple[object, ...], asyncio.Task[HostSettings]] = {}
        self._slots = asyncio.Semaphore(MAX_QUERIES)

    def prefetch(self, host: str, user: str | None, port: int | None, options: Sequence[str]) -> None:
        """Start the query for a host; the next `of` with the same arguments returns its result."""
        key = (host, user, port, *options)
        if key not in self._prefetched:
            self._prefetched[key] = asyncio.ensure_future(self._query_host(host, user, port, options))

    async def of(self, host: str, user: str | None, port: int | None, options: Sequence[str]) -> HostSettings:
        """Return the settings of a host; raises AgentFailure.

        Args:
            user, port: given by the user, None if not.
            options: settings that override those of the configuration files.
        """
        prefetched = self._prefetched.pop((host, user, port, *options), None)
        return await (prefetched or self._query_host(host, user, port, options))

    async def defaults(self) -> HostSettings:
        """Return OpenSSH's default settings, queried once; raises AgentFailure."""
        if self._defaults is None or (self._defaults.done() and not _succeeded(self._defaults)):
            self._defaults = asyncio.ensure_future(self._query("localhost", ["-F", "none"]))
        return await asyncio.shield(self._defaults)

    async def close(self) -> None:
        """End the queries that nothing waits for."""
        queries = [*self._prefetched.values(), *([] if self._defaults is None else [self._defaults])]
        for query in queries:
            query.cancel()
        await asyncio.gather(*queries, return_exceptions=True)
        self._prefetched.clear()

    async def _query_host(self, host: str, user: str | None, port: int | None, options: Sequence[str]) -> HostSettings:
        refused = name_problem(host, user)
        if refused:
            raise AgentFailure("agent-failed", refused)
        argv = [word for option in options for word in ("-o", option)]
        argv += ["-l", user] if user is not None else []
        argv += ["-p", str(port)] if port is not None else []
        return await self._query(host, argv)

    async def _query(self, host: str, argv: Sequence[str]) -> HostSettings:
        async with self._slots:
            code, output, errors = await capture(["ssh", "-T", "-G", *argv, "--", host])
        if code or not output:
            lines = errors.strip().splitlines() or [f"ssh -G: exit code {code}"]
            raise AgentFailure(classify_ssh_message(errors) or "agent-failed", lines[0].strip())
        values: dict[str, list[str]] = {}
        for line in output.splitlines():
            name, _, value = line.partition(" ")
            values.setdefault(name.lower(), []).append(value)
        return HostSettings(host, values)


def _succeeded(task: asyncio.Task[HostSettings]) -> bool:
    return not task.cancelled() and task.exception() is None
