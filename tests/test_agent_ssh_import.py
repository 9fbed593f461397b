"""asyncssh, loaded in less time: what it still can do, and who notices; and what we have it send."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import asyncssh
import pytest
from asyncssh.constants import MSG_CHANNEL_OPEN, MSG_IGNORE, MSG_KEX_LAST, MSG_SERVICE_REQUEST

from mpilaunch_agents.ssh_connection import _Client, _put_first
from mpilaunch_agents.ssh_import import find_library

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["c", "z", "crypto", "no-such-library"])
def test_libraries_are_found_as_ctypes_finds_them(name: str) -> None:
    assert find_library(name) == ctypes.util.find_library(name)


def test_the_import_starts_no_program_and_leaves_nothing_behind() -> None:
    code = """
import ctypes.util, gc, sys
before = ctypes.util.find_library
sys.addaudithook(lambda event, arguments: print(event) if event in ("subprocess.Popen", "os.posix_spawn", "os.fork") else None)
from mpilaunch_agents.ssh_import import load_asyncssh
load_asyncssh()
import asyncssh
print(ctypes.util.find_library is before, gc.isenabled(), "asyncssh.crypto.x509" in sys.modules)
"""
    folders = f"{ROOT}:{ROOT / 'agents'}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": folders}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True True False\n"


def told(code: str) -> str:
    """Return what some code prints in a process that loads asyncssh as a launch does."""
    start = """
import sys
from mpilaunch.head import lazily
lazily.put_off_what_everyone_imports()
lazily.load_asyncio(tls=False)
from mpilaunch_agents import ssh_import
"""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}"}
    done = subprocess.run([sys.executable, "-c", start + code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_asyncssh_and_cryptography_get_less_of_typing() -> None:
    other = """
import typing
from dataclasses import dataclass, fields
from typing import ClassVar, Mapping, NamedTuple, Optional

class Row(NamedTuple):
    number: int

@dataclass
class Record:
    shared: ClassVar[int] = 1
    own: Optional[int] = None

row, names, mapping, hints = Row(1), [field.name for field in fields(Record)], Mapping[str, int], typing.get_type_hints(Record)
"""
    code = f"""
class Other:
    def find_spec(self, name, path=None, target=None):
        if name == "asyncssh.misc":
            exec({other!r}, found)

sys.modules["gssapi.raw"] = module = type(sys)("gssapi.raw")
found = vars(module)
sys.meta_path.insert(0, Other())
ssh_import.load_asyncssh()
import asyncssh, typing
print(found["row"], found["names"], found["mapping"] == typing.Mapping[str, int], sorted(found["hints"]))
print(asyncssh.connection.Optional is typing.Optional, lazily.is_put_off("typing"), typing is sys.modules["typing"])
"""
    assert told(code) == "Row(number=1) ['own'] True ['own', 'shared']\nFalse False True\n"


def test_a_version_that_needs_more_is_loaded_whole() -> None:
    code = """
ssh_import.TYPING["Optional"] = None  # None[int]
ssh_import.load_asyncssh()
import asyncssh, asyncssh.sftp, typing
print(asyncssh.connection.Optional is typing.Optional, asyncssh.SFTPClient is asyncssh.sftp.SFTPClient)
print(issubclass(asyncssh.SFTPError, asyncssh.Error), "ctypes.util" in sys.modules)
"""
    assert told(code) == "True True\nTrue True\n"


def test_what_is_put_off_is_there_when_asyncssh_asks_for_it() -> None:
    code = """
ssh_import.load_asyncssh()
import asyncssh.connection
from asyncssh.misc import randrange
from pathlib import Path
print([name for name in ssh_import.PUT_OFF if name in sys.modules])
print(randrange(1), Path("/a b").as_uri(), asyncssh.connection.tempfile.gettempdir() != "")
"""
    assert told(code) == "[]\n0 file:///a%20b True\n"


def test_all_others_get_the_modules_as_they_are() -> None:
    code = """
ssh_import.load_asyncssh()
import random, secrets, tempfile, urllib.parse
print(secrets.choice([1]), random.SystemRandom().choice([2]), urllib.parse.quote("a b"), tempfile.gettempprefix())
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
key = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPsP0M+Sc5rnc/hxGk7Fw2lQm9bXr1YcUUtvQqVgPOxE"
print(type(serialization.load_ssh_public_key(key)).__name__, load_ssh_private_key is serialization.ssh.load_ssh_private_key)
print(hasattr(serialization, "no_such_function"), hasattr(serialization, "load_pem_private_key"))
"""
    assert told(code) == "1 2 a%20b tmp\nEd25519PublicKey True\nFalse True\n"


def test_asyncssh_says_nothing_and_works_for_no_message() -> None:
    code = """
ssh_import.load_asyncssh()
import asyncssh
asyncssh.set_log_level("DEBUG")
logger = asyncssh.logger.get_child("one", context="two")
logger.debug1("%s", object())
logger.error("nobody hears it")
print(lazily.is_put_off("logging"), "asyncssh.logging" in sys.modules)
"""
    assert told(code) == "True False\n"


def test_who_needs_what_is_not_loaded_is_told_what_to_do() -> None:
    code = """
ssh_import.load_asyncssh()
import asyncssh
try:
    asyncssh.SSHClientProcess()
except RuntimeError as error:
    print(error)
"""
    assert "imports asyncssh at the top of its own module" in told(code)


# What a connection sends


class Sends:
    """A connection that notes which kinds of packets it is to send."""

    def __init__(self, cipher: str | None) -> None:
        self.kinds: list[int] = []
        self._known = {} if cipher is None else {"send_cipher": cipher}

    def get_extra_info(self, name: str, default: str) -> str:
        return self._known.get(name, default)

    def send_packet(self, kind: int, *parts: bytes, handler: object = None) -> None:
        if kind > MSG_KEX_LAST:
            self.send_packet(MSG_IGNORE, b"")  # as asyncssh does
        self.kinds.append(kind)


@pytest.mark.parametrize(
    ("cipher", "empty"),
    [("aes128-gcm@openssh.com", 0), ("chacha20-poly1305@openssh.com", 0), ("aes256-ctr", 0), ("aes128-cbc", 1), (None, 1)],
)
def test_an_empty_packet_goes_before_another_only_where_the_cipher_needs_it(cipher: str | None, empty: int) -> None:
    sends = Sends(cipher)
    _Client(asyncssh.import_known_hosts(""), False).connection_made(cast(asyncssh.SSHClientConnection, sends))
    for kind in (MSG_SERVICE_REQUEST, MSG_CHANNEL_OPEN):
        sends.send_packet(kind, b"", handler=None)
    assert sends.kinds == [MSG_SERVICE_REQUEST, *[MSG_IGNORE] * empty, MSG_CHANNEL_OPEN]


def test_what_is_quick_is_offered_first_where_it_is_possible() -> None:
    assert _put_first([b"c", b"x"], [b"a", b"b", b"c"], [b"a", b"c"]) == ["c", "a"]
    assert _put_first([b"x"], [b"a"], [b"a"]) == ["a"]
