"""A directory for this user alone, with a name that nobody can guess: made, locked while it is used, and removed by descriptor.

A path is followed once, when the directory is made. After that everything is done relative to open descriptors, and no link is
ever followed, so that whoever takes the name in between cannot make us remove something else. A lock (flock) on the directory
lives as long as any process holds its descriptor: `sweep` removes those whose users were all killed.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time

PREFIX = "mpilaunch-"
LONGEST_SOCKET_PATH = 107
"""Bytes that the path of a Unix socket may have (unix(7))."""
LONGEST_NAME = 8
"""Bytes of the names of sockets in such a directory."""
YOUNG = 60.0
"""Seconds in which a directory without a lock is left alone: its maker may be about to lock it."""
MOST_LISTED = 20000
"""Entries of a place that a sweep looks at."""
DEEPEST = 64
"""Levels of directories that are removed; what lies deeper stays."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RANDOM_BYTES = 16


class PrivateDirectory:
    """One directory.

    Attributes:
        place: descriptor of the directory that it is in.
        descriptor: its own, which holds the lock.
        name: its name in the place.
        path: where it was when it was made.
    """

    def __init__(self, place: int, descriptor: int, name: str, path: str) -> None:
        self.place, self.descriptor, self.name, self.path = place, descriptor, name, path

    def remove(self) -> None:
        """Remove it with all that is in it, unless that was done; what cannot be removed stays. The descriptors are closed."""
        _empty(self.descriptor, DEEPEST)
        try:
            ours, named = os.fstat(self.descriptor), os.stat(self.name, dir_fd=self.place, follow_symlinks=False)
            if (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino):
                os.rmdir(self.name, dir_fd=self.place)
        except OSError:
            pass  # it has gone, or somebody holds a file there that we may not remove
        self.close()

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.descriptor)
        os.close(self.place)


def places() -> list[str]:
    """Return where such a directory may be made, the best first."""
    found = []
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        try:
            state = os.stat(runtime)
            if stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o077:
                found.append(runtime)
        except OSError:
            pass
    temporary = os.environ.get("TMPDIR", "")
    if os.path.isabs(temporary):
        found.append(temporary)
    return [*found, "/tmp"]


def make() -> PrivateDirectory:
    """Make one in the first place where that is possible; raises OSError with the reason of the last place."""
    error = OSError("no place for a directory")
    for place in places():
        name = PREFIX + os.urandom(_RANDOM_BYTES).hex()
        path = os.path.join(place, name)
        if len(os.fsencode(path)) + 1 + LONGEST_NAME > LONGEST_SOCKET_PATH:
            error = OSError("%s is too long for the path of a socket" % place)
            continue
        try:
            return _make(place, name, path)
        except OSError as reason:
            error = reason
    raise error


def _make(place: str, name: str, path: str) -> PrivateDirectory:
    parent = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
        try:
            descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError:
            os.rmdir(name, dir_fd=parent)
            raise
        made = PrivateDirectory(parent, descriptor, name, path)
        try:
            if not _is_private(descriptor):
                raise PermissionError("%s is not for this user alone" % path)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return made
    except OSError:
        os.close(parent)
        raise


def sweep() -> None:
    """Remove the directories of this user whose makers, and all that had a descriptor of them, were killed."""
    for place in places():
        try:
            parent = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            with os.scandir(parent) as entries:
                names = [entry.name for _, entry in zip(range(MOST_LISTED), entries) if _is_ours(entry.name)]
            for name in names:
                _sweep(parent, name)
        except OSError:
            pass  # it cannot be listed
        finally:
            os.close(parent)


def _sweep(parent: int, name: str) -> None:
    try:
        descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError:
        return  # a link, a file, another user's
    try:
        age = time.time() - os.fstat(descriptor).st_ctime
        if age > YOUNG and _is_private(descriptor):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            PrivateDirectory(os.dup(parent), os.dup(descriptor), name, "").remove()
    except OSError:
        pass  # it is in use
    finally:
        os.close(descriptor)


def _is_ours(name: str) -> bool:
    tail = name[len(PREFIX) :]
    return name.startswith(PREFIX) and len(tail) == 2 * _RANDOM_BYTES and not tail.strip("0123456789abcdef")


def _is_private(descriptor: int) -> bool:
    state = os.fstat(descriptor)
    return state.st_uid == os.geteuid() and not state.st_mode & 0o077


def _empty(descriptor: int, levels: int) -> None:
    """Remove what is in a directory, and follow nothing."""
    try:
        with os.scandir(descriptor) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return
    for name, is_directory in found:
        try:
            if not is_directory:
                os.unlink(name, dir_fd=descriptor)
            elif levels:
                inner = os.open(name, _DIRECTORY, dir_fd=descriptor)
                try:
                    _empty(inner, levels - 1)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=descriptor)
        except OSError:
            pass  # what cannot be removed stays
