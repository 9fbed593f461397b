"""The record of a keeper (`mpilaunch --up`): where its socket is, and the secret that opens it.

It is a file of mode 0600 in a directory that is the user's alone, under XDG_RUNTIME_DIR, else in the user's cache. The socket
is beside it, or, where the path would be too long or is on a file system that machines share, in a new directory of /tmp with
a name that nobody can guess. A directory of that name that belongs to somebody else, or that others may enter, is never used,
nor a link: then the next place is. The file's name has the kernel's boot id, as machines may share a home.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LONGEST_PATH = 107
"""Bytes that the path of a socket may have (unix(7))."""
LONGEST_RECORD = 4096
SECRET_SIZE = 32
FOLDER, SOCKET = "mpilaunch", "standby"


class Record:
    """One.

    Attributes:
        path: of the file.
        socket: path of the keeper's socket.
        secret: that both sides know.
    """

    def __init__(self, path: str, socket: str, secret: bytes) -> None:
        self.path, self.socket, self.secret = path, socket, secret


def _folders() -> list[tuple[str, bool]]:
    """Return the directories in which a record may be, the best first, and whether a socket may be there too."""
    runtime, cache = os.environ.get("XDG_RUNTIME_DIR", ""), os.environ.get("XDG_CACHE_HOME", "")
    folders = [(os.path.join(runtime, FOLDER), True)] if os.path.isabs(runtime) and os.path.isdir(runtime) else []
    base = cache if os.path.isabs(cache) else os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(base):
        folders.append((os.path.join(base, f"{FOLDER}-{SOCKET}"), False))
    return folders


def _opened(folder: str) -> int:
    """Return a descriptor of a directory that is this user's alone; raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not _is_private(os.fstat(descriptor)):
        os.close(descriptor)
        raise PermissionError(f"{folder} is not a directory of this user's alone")
    return descriptor


def _is_private(state: os.stat_result) -> bool:
    return state.st_uid == os.geteuid() and not state.st_mode & 0o077


def _name() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"keeper-{file.read().strip()}"


def read_records() -> list[Record]:
    """Return the records that there are; what is not this user's, or no record, is none."""
    records = []
    for folder, _ in _folders():
        with suppress(OSError, ValueError):
            directory = _opened(folder)
            try:
                file = os.open(_name(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            finally:
                os.close(directory)
            with open(file, "rb") as opened:
                state = os.fstat(file)
                if stat.S_ISREG(state.st_mode) and _is_private(state):
                    socket, secret = json.loads(opened.read(LONGEST_RECORD))
                    records.append(Record(os.path.join(folder, _name()), str(socket), bytes.fromhex(secret)))
    return records


def remove_record(record: Record) -> None:
    """Remove the record and the socket of a keeper that has gone, unless another has taken their place."""
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
    """Give the directory for a record, made if need be, and let nobody else have it; raises OSError when there is none."""
    error = OSError("neither XDG_RUNTIME_DIR nor a home directory is set")
    for folder, _ in _folders():
        try:
            os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            directory = _opened(folder)
        except OSError as reason:
            error = reason
            continue
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(directory)
        return
    raise error


def new_record(folder: str) -> Record:
    """Return a record for a keeper to come, which `write_record` writes when its socket is there; raises OSError."""
    beside = any(place == folder and may for place, may in _folders())
    socket = os.path.join(folder, SOCKET)
    if not beside or len(os.fsencode(socket)) > LONGEST_PATH:
        socket = os.path.join(tempfile.mkdtemp(prefix=f"{FOLDER}-", dir="/tmp"), SOCKET)
    with suppress(FileNotFoundError):
        os.unlink(socket)
    return Record(os.path.join(folder, _name()), socket, os.urandom(SECRET_SIZE))


def write_record(record: Record) -> None:
    """Write a record, in place of an old one; raises OSError."""
    mine = f"{record.path}.{os.getpid()}"
    with suppress(FileNotFoundError):
        os.unlink(mine)
    file = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(file, "w", encoding="ascii") as opened:
        json.dump([record.socket, record.secret.hex()], opened)
    os.replace(mine, record.path)
