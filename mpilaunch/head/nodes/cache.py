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
            _check_private(os.fstat(file))
            content = opened.read()
        except OSError:
            return None
    data = content[len(key) + CHECKSUM_SIZE :]
    return data if content == key + _checksum(data) + data else None


def write(name: str, key: bytes, data: bytes) -> None:
    """Cache `data` for later launches if possible."""
    # Concurrent launches write to files of their own; the last rename wins.
    temporary = f"{name}.{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError), _directory() as directory:
        try:
            with open(os.open(temporary, flags, 0o600, dir_fd=directory), "wb") as file:
                file.write(key + _checksum(data) + data)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            os.unlink(temporary, dir_fd=directory)


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
        _check_private(os.fstat(directory))
        yield directory


def _check_ours(status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise PermissionError("it belongs to another user")


def _check_private(status: os.stat_result) -> None:
    _check_ours(status)
    if status.st_mode & 0o022:
        raise PermissionError("others can write there")
