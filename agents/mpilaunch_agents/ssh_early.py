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
from collections.abc import Callable, Sequence
from types import ModuleType

from mpilaunch import later

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


STOOD_FOR = ("typing", "typing_extensions", "asyncssh.sftp", "asyncssh.scp")
ASKED_BY_DATACLASSES: dict[str, Callable[[type], object]] = {
    "signature": lambda cls: "",  # for the documentation of a class that has none
    "get_annotations": lambda cls: vars(cls).get("__annotations__", {}),
}
"""What `inspect` is asked for when a dataclass is made, and is loaded for otherwise."""


class _Kind:
    """Stands for whatever `typing` has: something to be subscribed, to be called, and to inherit nothing from."""

    def __init__(self, *given: object, **more: object) -> None:
        pass

    def __call__(self, decorated: object) -> object:
        return decorated

    def __class_getitem__(cls, item: object) -> type[_Kind]:
        return cls


class _Typing(ModuleType):
    """A module, as far as what is only defined needs it: `typing` for thousands of annotations, or one that is never called."""

    TYPE_CHECKING = False
    NamedTuple = tuple
    """Of X11, which nobody forwards here, are the only ones."""
    ClassVar = type("ClassVar", (_Kind,), {})
    """`dataclasses` asks whether something is one."""

    @staticmethod
    def cast(kind: object, value: object) -> object:
        """Return the value."""
        return value

    @staticmethod
    def overload(function: object) -> object:
        """Return the function."""
        return function

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kind


def load_asyncssh() -> None:
    """Import asyncssh without what takes most of that time and is of no use here.

    That is X.509, which OpenSSH has not, file transfer, what annotations mean, and what it takes to look for libraries. What
    stands for it stays with asyncssh. An agent of somebody else's that transfers files imports asyncssh when it is imported
    itself, which is before this.
    """
    import ctypes
    import gc

    instead: dict[str, ModuleType | None] = {name: _Typing(name) for name in STOOD_FOR}
    instead["asyncssh.crypto.x509"] = None  # "it is not there"
    if os.path.exists(LOADER_CACHE):
        instead["ctypes.util"] = libraries = ModuleType("ctypes.util")
        vars(libraries)["find_library"] = find_library
        vars(ctypes)["util"] = libraries
    before = {name: sys.modules[name] for name in instead if name in sys.modules}
    if "asyncssh" not in sys.modules:
        sys.modules.update(instead)  # type: ignore[arg-type]
    if later.is_put_off("inspect"):
        vars(sys.modules["inspect"]).update(ASKED_BY_DATACLASSES)
    # Loading makes hardly any garbage, and what it makes stays: neither now nor later is there anything to collect in it.
    gc.disable()
    try:
        import asyncssh  # noqa: F401
    finally:
        for name in instead:
            sys.modules.pop(name, None)
        sys.modules.update(before)
        vars(ctypes).pop("util", None)
        if "ctypes.util" in before:
            vars(ctypes)["util"] = before["ctypes.util"]
        if later.is_put_off("inspect"):
            for name in ASKED_BY_DATACLASSES:
                del vars(sys.modules["inspect"])[name]
        gc.freeze()
        gc.enable()


def find_library(name: str) -> str | None:
    """Find a library in the loader's own cache; `ctypes.util.find_library` runs up to four programs for that."""
    with open(LOADER_CACHE, "rb") as file:
        found = re.findall(rb"[/\0](lib%s\.so[.0-9]*)(?=\0)" % re.escape(name.encode()), file.read())
    return max(found, key=len).decode("ascii") if found else None
