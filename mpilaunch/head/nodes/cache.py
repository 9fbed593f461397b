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
            content = safe_files.read_own(directory, name, 0o022)
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
        safe_files.check_own(base, os.stat(os.path.dirname(base)))
    with safe_files.directory(base, make=True) as above:
        safe_files.check_own(base, os.fstat(above))
        with suppress(FileExistsError):
            os.mkdir("mpilaunch", 0o700, dir_fd=above)
    with safe_files.directory(os.path.join(base, "mpilaunch")) as directory:
        safe_files.check_own(base, os.fstat(directory), 0o022)
        yield directory
