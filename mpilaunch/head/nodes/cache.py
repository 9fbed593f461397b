"""A cache of files between launches, in a directory that only the user can write to; it holds the bundle.

A file starts with the caller's key and a checksum, so stale or damaged content is never used. Without a safe directory (no
home, or another user's home as with sudo) nothing is cached, and nothing fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mpilaunch.head import safe_files

CHECKSUM_SIZE = 32


def read(name: str, key: bytes) -> bytes | None:
    """Return the data cached under a name for this key; None when there is none, or it is damaged."""
    try:
        with _directory() as directory:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    with open(file, "rb") as opened:
        try:
            _check_ours(os.fstat(file), 0o022)
            content = opened.read()
        except OSError:
            return None
    data = content[len(key) + CHECKSUM_SIZE :]
    return data if content == key + _checksum(data) + data else None


def write(name: str, key: bytes, data: bytes) -> None:
    """Cache `data` for later launches if possible."""
    with suppress(OSError), _directory() as directory:
        safe_files.replace_in(directory, name, key + _checksum(data) + data, 0o600)


def _checksum(data: bytes) -> bytes:
    import hashlib  # a local launch caches nothing

    return hashlib.blake2b(data, digest_size=CHECKSUM_SIZE).digest()


@contextmanager
def _directory() -> Iterator[int]:
    """Yield a descriptor of mpilaunch's directory in the user's cache, made if missing; raises OSError when it is unsafe."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.cache")
    if not os.path.isdir(base):
        _check_ours(os.stat(os.path.dirname(base)))
    with safe_files.directory(base, make=True) as above:
        _check_ours(os.fstat(above))
        with suppress(FileExistsError):
            os.mkdir("mpilaunch", 0o700, dir_fd=above)
    with safe_files.directory(os.path.join(base, "mpilaunch")) as directory:
        _check_ours(os.fstat(directory), 0o022)
        yield directory


def _check_ours(status: os.stat_result, forbidden: int = 0) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & forbidden:
        raise PermissionError("it belongs to another user, or others can write there")
