"""The first steps of the agent `ssh`, taken before asyncssh is there: connections to hosts.

Loading asyncssh takes longer than anything else that one host needs. Meanwhile sshd can get ready, if it is connected to first.
Which host and port a node's name means is for the ssh configuration, which asyncssh reads: so the connection is made only where
no line of it could change that, and is used only where none did.
"""

from __future__ import annotations

import asyncio
import glob
import os
import re
import socket
from collections.abc import Sequence

LEADS_ELSEWHERE = re.compile(
    r"^\s*(?:match|hostname|port|proxyjump|proxycommand|bindaddress|bindinterface|addressfamily|canonicalizehostname)\b",
    re.IGNORECASE | re.MULTILINE,
)
INCLUDE = re.compile(r"^\s*include\s+(.*\S)", re.IGNORECASE | re.MULTILINE)


def leads_elsewhere(settings: Sequence[str], files: Sequence[str]) -> bool:
    """Say whether a configuration might send a connection anywhere but to the host and port that were named."""
    text = "\n".join(settings)
    for name in files:
        path = os.path.expanduser(name)
        if os.path.exists(path):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    text += "\n" + file.read()
            except OSError:
                return True
            patterns = " ".join(INCLUDE.findall(text)).replace('"', " ").split()
            if any(glob.glob(os.path.join(os.path.dirname(path), os.path.expanduser(pattern))) for pattern in patterns):
                return True
    return LEADS_ELSEWHERE.search(text) is not None


class EarlyConnection:
    """A connection to a host, under way."""

    def __init__(self, host: str, port: int) -> None:
        self.target = host, port
        self.task = asyncio.ensure_future(_connect(host, port))
        self._taken = False

    async def take(self) -> socket.socket:
        """Return the socket, which is the caller's now; raises OSError."""
        connected = await self.task
        self._taken = True
        return connected

    def close(self) -> None:
        """Give the connection up, unless somebody has taken it."""
        if not self._taken:
            self.task.cancel()
            self.task.add_done_callback(_close)


async def _connect(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    reasons: list[OSError] = []
    # Python would load the tables of all scripts (RFC 3490) to find out that a name needs none of them.
    name = host.encode() if host.isascii() else host
    for family, kind, protocol, _, address in await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM):
        tried = socket.socket(family, kind, protocol)
        tried.setblocking(False)
        try:
            await loop.sock_connect(tried, address)
            return tried
        except OSError as error:
            tried.close()
            reasons.append(error)
        except BaseException:
            tried.close()
            raise
    raise reasons[0]


def _close(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()
