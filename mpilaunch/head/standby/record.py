"""The record of a keeper (`mpilaunch up`): the path of its socket, and the secret that clients must prove to know.

The record is a file of mode 0600 in a private directory of the user, under XDG_RUNTIME_DIR or else in the user's cache. The
socket is beside it; where the path would be too long, or machines may share the file system, it is in a new directory of /tmp
with an unguessable name. A link of another user in the path, or a directory that belongs to or is open to other users, is never
used, since root may have the HOME of another user: then the next candidate is. The file's name contains the kernel's boot id,
since machines may share a home.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from mpilaunch.head import safe_files

LONGEST_ADDRESS = 107
"""Bytes in the address of a socket (unix(7)), which here is its path."""
LONGEST_RECORD = 4096
SECRET_SIZE = 32
FOLDER, SOCKET = "mpilaunch", "standby"


class Record(NamedTuple):
    """A record: the path of its file, the path of the keeper's socket, and the secret."""

    path: str
    socket: str
    secret: bytes


def _folders() -> list[tuple[str, bool]]:
    """Return the candidate directories for a record, in order, and whether each may hold the socket too."""
    runtime, cache = os.environ.get("XDG_RUNTIME_DIR", ""), os.environ.get("XDG_CACHE_HOME", "")
    folders = [(os.path.join(runtime, FOLDER), True)] if os.path.isabs(runtime) and os.path.isdir(runtime) else []
    base = cache if os.path.isabs(cache) else os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(base):
        folders.append((os.path.join(base, f"{FOLDER}-{SOCKET}"), False))
    return folders


def _name() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"keeper-{file.read().strip()}"


def read_records() -> list[Record]:
    """Return the existing records; files of other users and invalid files are skipped."""
    records = []
    for folder, _ in _folders():
        with suppress(OSError, ValueError), safe_files.private_directory(folder) as directory:
            socket, secret = json.loads(safe_files.read_own(directory, _name(), 0o077, LONGEST_RECORD))
            records.append(Record(os.path.join(folder, _name()), str(socket), bytes.fromhex(secret)))
    return records


def remove_record(record: Record) -> None:
    """Remove the record and the socket of a keeper that has ended, unless another keeper has replaced them."""
    if not any((other.path, other.secret) == (record.path, record.secret) for other in read_records()):
        return
    for path in (record.socket, record.path):
        with suppress(OSError):
            os.unlink(path)
    if os.path.dirname(record.socket) != os.path.dirname(record.path):
        with suppress(OSError):
            os.rmdir(os.path.dirname(record.socket))


@contextmanager
def one_at_a_time() -> Iterator[str]:
    """Yield the directory for a record, made if missing, under an exclusive lock; raises OSError when no candidate works."""
    error = OSError("neither XDG_RUNTIME_DIR nor a home directory is set")
    for folder, _ in _folders():
        with ExitStack() as stack:
            try:
                directory = stack.enter_context(safe_files.private_directory(folder, make=True))
            except OSError as reason:
                error = OSError(f"{folder}: {reason.strerror or reason}")
                continue
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield folder
            return
    raise error


def new_record(folder: str) -> Record:
    """Return a new record; the keeper calls `write_record` when its socket listens; raises OSError."""
    beside = (folder, True) in _folders()
    socket = os.path.join(folder, SOCKET)
    if not beside or len(os.fsencode(socket)) > LONGEST_ADDRESS:
        socket = os.path.join(tempfile.mkdtemp(prefix=f"{FOLDER}-", dir="/tmp"), SOCKET)
    with suppress(FileNotFoundError):
        os.unlink(socket)
    return Record(os.path.join(folder, _name()), socket, os.urandom(SECRET_SIZE))


def write_record(record: Record) -> None:
    """Write a record, replacing an old one; raises OSError."""
    folder, name = os.path.split(record.path)
    with safe_files.private_directory(folder) as directory:
        safe_files.replace_in(directory, name, json.dumps([record.socket, record.secret.hex()]).encode(), 0o600)
