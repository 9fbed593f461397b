"""asyncssh, loaded without what takes most of that time and is of no use to an agent that logs in and runs a command.

What is not loaded has something in its place, which only asyncssh gets to see; all others import the modules as they are.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from types import FrameType, ModuleType

from mpilaunch import later

LOADER_CACHE = "/etc/ld.so.cache"
USERS = ("asyncssh", "cryptography")
"""Packages of which we know what they need. Whatever else they load, gssapi or fido2 perhaps, gets every module as it is."""
MODULES = "auth_keys editor process scp sftp socks sshsig stream subprocess tuntap x11"
NEVER_CALLED = [f"asyncssh.{name}" for name in MODULES.split()]
"""What file transfers, servers, terminals, and programs that are talked to by asyncssh's own streams need."""
SSH_KEYS = "cryptography.hazmat.primitives.serialization.ssh"
"""What cryptography knows of the keys of ssh, which asyncssh knows itself."""
ASKED_BY_DATACLASSES: dict[str, Callable[[type], object]] = {
    "signature": lambda cls: "",  # for the documentation of a class that has none
    "get_annotations": lambda cls: vars(cls).get("__annotations__", {}),
}
"""What `inspect` is asked for when a dataclass is made, and is loaded for otherwise."""


class _Kind:
    """Stands for what is only defined, or only says what something is."""

    def __class_getitem__(cls, item: object) -> type[_Kind]:
        return cls


class _NotLoaded(_Kind):
    """Stands for what nobody is to call."""

    def __init__(self, *given: object, **more: object) -> None:
        raise RuntimeError(
            "mpilaunch has loaded asyncssh without this: an agent that needs file transfer, processes or streams of asyncssh "
            "imports asyncssh at the top of its own module"
        )


class _NeverCalled(ModuleType):
    """A module that no connection of ours has a use for."""

    def __getattr__(self, name: str) -> type[_Kind]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NotLoaded


def _load_ssh_key_function(name: str) -> object:
    """Be the `__getattr__` of the package that would have imported SSH_KEYS."""
    return getattr(importlib.import_module(SSH_KEYS), name)


class _SystemRandom:
    """Stands for `random.SystemRandom`, which draws the secrets of old key exchanges."""

    def randrange(self, *given: int) -> object:
        return later.load("random").SystemRandom().randrange(*given)


class _Silent:
    """Stands for asyncssh's loggers, which work for every message whether or not anybody wants it; nobody does."""

    def get_child(self, child: str = "", context: str = "") -> _Silent:
        return self

    def __getattr__(self, level: str) -> Callable[..., None]:
        return _say_nothing


def _say_nothing(*said: object, **more: object) -> None:
    pass


PUT_OFF: dict[str, dict[str, object]] = {
    "random": {"__path__": (), "SystemRandom": _SystemRandom},
    "tempfile": {},  # for a forwarded agent's socket
    "urllib.parse": {
        "__path__": (),  # every `from ... import` asks for it
        "quote_from_bytes": lambda *given, **more: later.load("urllib.parse").quote_from_bytes(*given, **more),
    },
}
"""What asyncssh and `pathlib` import and hardly ever use."""

LOGGING = {
    "SSHLogger": _Silent,
    "logger": _Silent(),
    "sftp_logger": _Silent(),
    **dict.fromkeys(("set_log_level", "set_sftp_log_level", "set_debug_level"), _say_nothing),
}
"""What there is in `asyncssh.logging`."""

KINDS = """
    Any AnyStr AsyncContextManager AsyncGenerator AsyncIterable AsyncIterator Awaitable BinaryIO Callable ContextManager
    Coroutine DefaultDict Deque Dict FrozenSet Generator Generic IO Iterable Iterator List Literal Mapping MutableMapping
    NoReturn Optional Pattern Protocol Self Sequence Set SupportsBytes TextIO Tuple Type Union
"""
TYPING: dict[str, object] = {
    **dict.fromkeys(KINDS.split(), _Kind),
    "TYPE_CHECKING": False,
    "TypeVar": lambda *given, **more: _Kind,
    "cast": lambda kind, value: value,
    "overload": lambda function: function,
    # `dataclasses` asks what these are.
    "ClassVar": type("ClassVar", (_Kind,), {}),
    "_GenericAlias": type("_GenericAlias", (_Kind,), {}),
}


class _Typing(ModuleType):
    """`typing` for those who only write annotations, thousands of them; all others, and all other names, get the real one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.real = sys.modules.get(name)
        self._loaded = False

    def __getattr__(self, name: str) -> object:
        if name == "__path__":
            raise AttributeError(name)  # every `from typing import` asks for it
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") == "dataclasses":
            frame = frame.f_back
        user = "" if frame is None else frame.f_globals.get("__name__", "").partition(".")[0]
        return TYPING[name] if user in USERS and name in TYPING else getattr(self._load(), name)

    def _load(self) -> ModuleType | None:
        if not self._loaded:
            ours = sys.modules.pop(self.__name__)
            try:
                if self.real is not None:
                    sys.modules[self.__name__] = self.real
                self.real = later.load(self.__name__)
                self._loaded = True
            finally:
                sys.modules[self.__name__] = ours
        return self.real


def load_asyncssh() -> None:
    """Import asyncssh without what takes most of that time and is of no use here.

    That is X.509, which OpenSSH has not, X11, file transfer, processes and streams, loggers, what annotations mean, and what it
    takes to look for libraries. An agent of somebody else's that needs any of it imports asyncssh when it is imported itself,
    which is before this.
    """
    import gc

    # Loading makes hardly any garbage, and what it makes stays: neither now nor later is there anything to collect in it.
    gc.disable()
    try:
        try:
            if "asyncssh" not in sys.modules:
                _load_less()
        except Exception:
            # A version that needs what we do not know of.
            for name in [name for name in sys.modules if name.partition(".")[0] == "asyncssh"]:
                del sys.modules[name]
        import asyncssh  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def _load_less() -> None:
    import ctypes

    typings = [_Typing(name) for name in ("typing", "typing_extensions")]
    instead: dict[str, ModuleType | None] = {module.__name__: module for module in typings}
    instead |= {name: _NeverCalled(name) for name in (*NEVER_CALLED, SSH_KEYS)}
    instead |= {name: later.stand_in(name, known) for name, known in PUT_OFF.items() if name not in sys.modules}
    instead["asyncssh.crypto.x509"] = None  # "it is not there"
    instead["asyncssh.logging"] = silence = ModuleType("asyncssh.logging")
    vars(silence).update(LOGGING)
    if os.path.exists(LOADER_CACHE):
        instead["ctypes.util"] = libraries = ModuleType("ctypes.util")
        vars(libraries)["find_library"] = find_library
        vars(ctypes)["util"] = libraries
    before = {name: sys.modules.get(name) for name in instead}
    sys.modules.update(instead)  # type: ignore[arg-type]
    asked = later.is_put_off("inspect")
    if asked:
        vars(sys.modules["inspect"]).update(ASKED_BY_DATACLASSES)
    try:
        import asyncssh  # noqa: F401
    finally:
        for name, module in (before | {module.__name__: module.real for module in typings}).items():
            if module is not None:
                sys.modules[name] = module
            elif sys.modules.get(name) is instead[name]:
                sys.modules.pop(name, None)  # unless it was loaded after all
        if (serialization := sys.modules.get(SSH_KEYS.rpartition(".")[0])) is not None:
            for name in [name for name, value in vars(serialization).items() if value is _NotLoaded]:
                delattr(serialization, name)
            vars(serialization)["__getattr__"] = _load_ssh_key_function
        vars(ctypes).pop("util", None)
        if "ctypes.util" in sys.modules:
            vars(ctypes)["util"] = sys.modules["ctypes.util"]
        if asked and later.is_put_off("inspect"):
            for name in ASKED_BY_DATACLASSES:
                del vars(sys.modules["inspect"])[name]


def find_library(name: str) -> str | None:
    """Find a library in the loader's own cache; `ctypes.util.find_library` runs up to four programs for that."""
    begin = f"lib{name}.so".encode()
    found = [text.partition(b"\0")[0] for text in _loader_cache().split(b"\0" + begin)[1:]]
    versions = [version for version in found if not version.strip(b".0123456789")]
    return (begin + max(versions, key=len)).decode() if versions else None


@lru_cache(None)
def _loader_cache() -> bytes:
    with open(LOADER_CACHE, "rb") as file:
        # Names and paths, each with a zero behind it; a name may be the end of its path (elf/cache.c in glibc).
        return file.read().replace(b"/", b"\0")
