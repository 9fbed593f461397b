"""What one launch has made and the next can use: files in a directory that is the user's alone.

A file is used when it begins with the key that the caller expects: what is stale is made anew. Where there is no such directory
(no home, or that of another user, as with sudo) nothing is kept, and nothing fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mpilaunch.head import safe_files

DAY = 86400.0
"""Seconds after which a file that is used is marked as one that is."""


def opened(name: str, key: bytes) -> int | None:
    """Return a descriptor of what was kept under a name for this key, behind the key; None when it is not there."""
    try:
        with _directory() as directory:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        _check_private(found)
        if os.read(file, len(key)) == key:
            if time.time() - found.st_mtime > DAY:
                os.utime(file)
            return file
    except OSError:
        pass
    os.close(file)
    return None


def read(name: str, key: bytes) -> bytes | None:
    """Return what was kept under a name for this key, None when it is not there."""
    file = opened(name, key)
    if file is None:
        return None
    with open(file, "rb") as kept:
        return kept.read()


def can_be_written() -> bool:
    """Say whether something can be kept."""
    try:
        with _directory() as directory:
            return os.access(".", os.W_OK, dir_fd=directory)
    except OSError:
        return False


def write(name: str, key: bytes, data: bytes) -> None:
    """Keep `data` for the next launch, where that can be."""
    # Two launches at once each write a file of their own, and the later one stays.
    mine = f"{name}.{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError), _directory() as directory:
        try:
            with open(os.open(mine, flags, 0o600, dir_fd=directory), "wb") as file:
                file.write(key + data)
            os.rename(mine, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            os.unlink(mine, dir_fd=directory)


def keep_newest(prefix: str, count: int) -> None:
    """Remove the files whose names begin so and that have not been used for longest, until there are so many."""
    with suppress(OSError), _directory() as directory:  # another launch does the same
        with os.scandir(directory) as entries:
            found = sorted((entry.stat().st_mtime, entry.name) for entry in entries if entry.name.startswith(prefix))
        for _, name in found[:-count]:
            os.unlink(name, dir_fd=directory)


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
