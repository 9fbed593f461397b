"""The private directory of a job on this node, for the files of libpmix and of the MPI libraries.

Its name cannot be guessed, and it is used only if it is a directory of this user with mode 0700. The daemon keeps it open and
locked (flock), and so does the helper that it forks: the kernel drops the lock when both have ended. A directory is emptied
through its descriptor and by whoever holds the lock: the daemon, or, once the daemon has died, its guard or a later job's
helper. This module must never follow a link, nor remove a directory that it has not opened and checked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

PREFIX = "mpilaunch-"
DIGITS = 32
"""Hexadecimal digits behind the prefix. Directories of releases that took no lock have 16, and are left alone."""
LONGEST_RUNTIME = 32
"""Bytes of an XDG_RUNTIME_DIR that is used: a Unix socket's path has 107, and MPI libraries put sockets some levels below."""
REMOVE_SECONDS = 10.0
"""How long one removal may take, if somebody still writes there."""
YOUNGEST_SWEPT = 60.0
"""Seconds since a directory was changed before a sweep takes it: its maker has locked it by then."""
MOST_SWEPT = 100
"""Directories that one sweep removes."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PrivateDirectory:
    """A directory that is made when it is needed.

    Attributes:
        path: of the directory, whether it is there or not.
        descriptor: of the directory while it is open here, else -1.

    Args:
        parent: the directory to make it in; None for XDG_RUNTIME_DIR, TMPDIR or /tmp, the first that is safe.
    """

    def __init__(self, parent: str | None = None) -> None:
        parent = _parent() if parent is None else parent
        self._name = PREFIX + os.urandom(DIGITS // 2).hex()
        self.path = os.path.join(parent, self._name)
        try:
            self._parent = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            self._parent = -1  # most jobs need no directory: `make` raises for those that do
        self.descriptor = -1

    @property
    def descriptors(self) -> tuple[int, int]:
        """What a process that is forked off must keep open to use this object."""
        return self._parent, self.descriptor

    def make(self) -> None:
        """Make, open and lock the directory unless that has been done; raises OSError."""
        if self.descriptor >= 0:
            return
        if self._parent < 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.path.dirname(self.path))
        os.mkdir(self._name, 0o700, dir_fd=self._parent)
        descriptor = os.open(self._name, _OPEN, dir_fd=self._parent)
        if not _is_private(descriptor):
            os.close(descriptor)
            raise PermissionError(errno.EPERM, "it was exchanged while it was made", self.path)
        try:
            _lock(descriptor)
        except OSError:
            pass  # a file system without locks: nobody will sweep it
        self.descriptor = descriptor

    def remove(self) -> None:
        """Remove what `make` has made; nothing otherwise. To be called by the process that made it."""
        if self.descriptor >= 0:
            _remove(self._parent, self._name, self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1

    def remove_abandoned(self) -> None:
        """Remove what a daemon that has died made, and let go of the parent; to be called once, by its guard."""
        if self._parent >= 0:
            _take_over(self._parent, self._name, must_lock=False)
            os.close(self._parent)
            self._parent = -1

    def sweep(self) -> None:
        """Remove the directories of this user's dead jobs that stand beside this one."""
        now = time.time()
        swept = 0
        for name in _names_at(self._parent):
            if swept == MOST_SWEPT:
                return
            if not _is_ours(name) or name == self._name:
                continue
            try:
                changed = os.stat(name, dir_fd=self._parent, follow_symlinks=False).st_mtime
            except OSError:
                continue
            if now - changed >= YOUNGEST_SWEPT and _take_over(self._parent, name, must_lock=True):
                swept += 1


# Where it stands


def _parent() -> str:
    """Return the directory to make it in."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if len(os.fsencode(runtime)) <= LONGEST_RUNTIME and _is_usable(runtime):
        facts = os.stat(runtime)
        if facts.st_uid == os.geteuid() and not facts.st_mode & 0o077:
            return runtime
    temporary = os.environ.get("TMPDIR", "")
    return temporary if _is_usable(temporary) else "/tmp"


def _is_usable(path: str) -> bool:
    """Tell whether we can write there, and nobody else but root can rename what we make there."""
    if not os.path.isabs(path) or "\0" in path:
        return False
    try:
        facts = os.stat(path)
    except OSError:
        return False
    others_write = facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX
    return (
        stat.S_ISDIR(facts.st_mode)
        and facts.st_uid in (0, os.geteuid())
        and not others_write
        and os.access(path, os.W_OK | os.X_OK)
    )


# How it is removed


def _take_over(parent: int, name: str, must_lock: bool) -> bool:
    """Remove a directory whose processes have died; False when it is not there, not ours, or still in use.

    Args:
        must_lock: leave it alone where the file system has no locks.
    """
    try:
        descriptor = os.open(name, _OPEN, dir_fd=parent)
    except OSError:
        return False
    try:
        if not _is_private(descriptor):
            return False
        try:
            _lock(descriptor)
        except OSError as error:
            if must_lock or isinstance(error, BlockingIOError):
                return False
        return _remove(parent, name, descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Lock a directory for this process and those that it forks; raises BlockingIOError when others have locked it."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove(parent: int, name: str, descriptor: int) -> bool:
    """Empty a directory, and remove it if it still has this name; True when it is gone."""
    _empty(descriptor)
    try:
        if not os.path.samestat(os.stat(name, dir_fd=parent, follow_symlinks=False), os.fstat(descriptor)):
            return False
        os.rmdir(name, dir_fd=parent)
    except OSError:
        return False
    return True


def _empty(root: int) -> None:
    """Remove all that a directory holds; what cannot be removed stays, and so does what links lead to.

    Each round removes the files of the top level and moves the directories below it up, so that trees of any depth need
    two descriptors.
    """
    deadline = time.monotonic() + REMOVE_SECONDS
    moved = 0
    while time.monotonic() < deadline:
        progress = False
        for name in _names(root):
            if _unlink(root, name):
                progress = True
                continue
            try:
                folder = os.open(name, _OPEN, dir_fd=root)
            except OSError:
                continue
            try:
                if os.fstat(folder).st_dev != os.fstat(root).st_dev:
                    continue  # a mount
                for inner in _names(folder):
                    if not _unlink(folder, inner):
                        moved += 1
                        progress |= _move(folder, inner, root, "moved-%d-%d" % (os.getpid(), moved))
                os.rmdir(name, dir_fd=root)
                progress = True
            except OSError:
                pass
            finally:
                os.close(folder)
        if not progress:
            return


def _unlink(folder: int, name: str) -> bool:
    """Remove what is not a directory; the kernel refuses to unlink one."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True


def _move(folder: int, name: str, root: int, new_name: str) -> bool:
    try:
        os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=root)
    except OSError:
        return False
    return True


def _names_at(path_only: int) -> list[str]:
    """Return what is in a directory whose descriptor was opened with O_PATH."""
    try:
        descriptor = os.open(".", _OPEN, dir_fd=path_only)
    except OSError:
        return []
    try:
        return _names(descriptor)
    finally:
        os.close(descriptor)


def _names(descriptor: int) -> list[str]:
    try:
        return os.listdir(descriptor)
    except OSError:
        return []


def _is_ours(name: str) -> bool:
    digits = name[len(PREFIX) :]
    return name.startswith(PREFIX) and len(digits) == DIGITS and set(digits) <= set("0123456789abcdef")


def _is_private(descriptor: int) -> bool:
    """Tell whether an open directory is this user's own, and closed to all others."""
    facts = os.fstat(descriptor)
    return facts.st_uid == os.geteuid() and stat.S_IMODE(facts.st_mode) & 0o777 == 0o700
