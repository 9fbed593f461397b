"""What one launch has made and the next can use: files in a directory that is the user's alone.

A file begins with the key that the caller expects and a checksum of what follows: what is stale or damaged is made anew. Where
there is no such directory (no home, or that of another user, as with sudo) nothing is kept, and nothing fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mpilaunch.head import safe_files

CHECKSUM_SIZE = 32


def read(name: str, key: bytes) -> bytes | None:
    """Return what was kept under a name for this key; None when it is not there, or damaged."""
    try:
        with _directory() as directory:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    with open(file, "rb") as kept:
        try:
            _check_private(os.fstat(file))
            content = kept.read()
        except OSError:
            return None
    data = content[len(key) + CHECKSUM_SIZE :]
    return data if content == key + _checksum(data) + data else None


def write(name: str, key: bytes, data: bytes) -> None:
    """Keep `data` for the next launch, where that can be."""
    # Two launches at once each write a file of their own, and the later one stays.
    mine = f"{name}.{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError), _directory() as directory:
        try:
            with open(os.open(mine, flags, 0o600, dir_fd=directory), "wb") as file:
                file.write(key + _checksum(data) + data)
            os.rename(mine, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            os.unlink(mine, dir_fd=directory)


def _checksum(data: bytes) -> bytes:
    import hashlib  # a launch on this machine keeps nothing

    return hashlib.blake2b(data, digest_size=CHECKSUM_SIZE).digest()


@contextmanager
def _directory() -> Iterator[int]:
    """Give a descriptor of our directory in the user's cache, made if need be; raises OSError when none is safe."""
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


def _check_ours(found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise PermissionError("it is another user's")


def _check_private(found: os.stat_result) -> None:
    _check_ours(found)
    if found.st_mode & 0o022:
        raise PermissionError("others can write there")
