"""What one launch has made and the next can use: files in a directory that is the user's alone.

A file is used when it begins with the key that the caller expects: what is stale is made anew. Where there is no such directory
(no home, or that of another user, as with sudo) nothing is kept, and nothing fails.
"""

from __future__ import annotations

import os
import time

DAY = 86400.0
"""Seconds after which a file that is used is marked as one that is."""


def opened(name: str, key: bytes) -> int | None:
    """Return a descriptor of what was kept under a name for this key, behind the key; None when it is not there."""
    try:
        file = os.open(os.path.join(_directory(), name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
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
        return os.access(_directory(), os.W_OK)
    except OSError:
        return False


def write(name: str, key: bytes, data: bytes) -> None:
    """Keep `data` for the next launch, where that can be."""
    try:
        path = os.path.join(_directory(), name)
    except OSError:
        return
    # Two launches at once each write a file of their own, and the later one stays.
    mine = f"{path}.{os.getpid()}"
    try:
        with open(os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(key + data)
        os.replace(mine, path)
    except OSError:
        try:
            os.unlink(mine)
        except OSError:
            pass


def keep_newest(prefix: str, count: int) -> None:
    """Remove the files whose names begin so and that have not been used for longest, until there are so many."""
    try:
        with os.scandir(_directory()) as entries:
            found = sorted((entry.stat().st_mtime, entry.path) for entry in entries if entry.name.startswith(prefix))
        for _, path in found[:-count]:
            os.unlink(path)
    except OSError:
        pass  # another launch does the same


def _directory() -> str:
    """Return our directory in the user's cache, made if need be; raises OSError when there is none that is safe."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.cache")
    path = os.path.join(base, "mpilaunch")
    for folder, mode in ((base, 0o777), (path, 0o700)):
        if not os.path.isdir(folder):
            _check_ours(os.stat(os.path.dirname(folder)))
            os.mkdir(folder, mode)
        _check_ours(os.stat(folder))
    _check_private(os.stat(path))
    return path


def _check_ours(found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise PermissionError("it is another user's")


def _check_private(found: os.stat_result) -> None:
    _check_ours(found)
    if found.st_mode & 0o022:
        raise PermissionError("others can write there")
