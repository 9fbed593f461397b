"""The first steps of the agent `ssh`, taken before asyncssh is there: connections to hosts, and a quicker import.

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
import sys
from collections.abc import Sequence
from types import ModuleType

LEADS_ELSEWHERE = re.compile(
    r"^\s*(?:match|hostname|port|proxyjump|proxycommand|bindaddress|bindinterface|addressfamily|canonicalizehostname)\b",
    re.IGNORECASE | re.MULTILINE,
)
LOADER_CACHE = "/etc/ld.so.cache"
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
            if any(glob.glob(os.path.join(os.path.dirname(path), pattern)) for pattern in patterns):
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
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
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


# The import


def load_asyncssh() -> None:
    """Import asyncssh without what costs it half of its time: X.509, which OpenSSH does not have, and looking for libraries."""
    import ctypes.util
    import gc

    search = ctypes.util.find_library
    unknown = [name for name in ("asyncssh.crypto.x509",) if name not in sys.modules]
    hidden: dict[str, ModuleType | None] = dict.fromkeys(unknown)
    sys.modules.update(hidden)  # type: ignore[arg-type]  # "it is not there"
    # Loading makes hardly any garbage, and what it makes stays: neither now nor later is there anything to collect in it.
    gc.disable()
    if os.path.exists(LOADER_CACHE):
        ctypes.util.find_library = find_library
    try:
        import asyncssh  # noqa: F401
    finally:
        ctypes.util.find_library = search
        for name in unknown:
            del sys.modules[name]
        gc.freeze()
        gc.enable()


def find_library(name: str) -> str | None:
    """Find a library in the loader's own cache; `ctypes.util.find_library` runs up to four programs for that."""
    with open(LOADER_CACHE, "rb") as file:
        found = re.findall(rb"[/\0](lib%s\.so[.0-9]*)(?=\0)" % re.escape(name.encode()), file.read())
    return max(found, key=len).decode("ascii") if found else None
