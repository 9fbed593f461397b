"""The private directory of a daemon: holds the socket to which a lost head connects again, and the files of PMIx.

The name cannot be guessed, and the directory is used only if it belongs to this user with mode 0700. The daemon keeps it open
and locked (flock), and so do the processes that it forks: the kernel drops the lock when all have ended. A directory is emptied
through its descriptor, by a process that holds the lock: the daemon, or its guard or a later job's guard after its death. This
module must never follow a link, nor remove a directory that it has not opened and checked.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX = "mpilaunch-"
DIGITS = 32
"""Hexadecimal digits after the prefix. Directories of releases that took no lock have 16, and are left alone."""
LONGEST_RUNTIME = 32
"""Bytes of an XDG_RUNTIME_DIR that is used: a Unix socket's path has 107, and MPI libraries put sockets some levels below."""
REMOVE_SECONDS = 10.0
"""Limit of one removal, and of a whole sweep, in case another process keeps writing."""
YOUNGEST_SWEPT = 60.0
"""Seconds since its last change before a sweep takes a directory: its maker has locked it by then."""
MOST_SWEPT = 100
"""Directories that one sweep removes."""
MOST_EXAMINED = 1000
"""Directories that one sweep looks at, since other users can make any number. It begins anywhere, so that each has its turn."""
MOST_LISTED = 20000
"""Names of one directory that are looked at in one go."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PrivateDirectory:
    """A directory that is made when its first user needs it, and removed with its last user.

    Attributes:
        path: of the directory, whether it exists or not.
        descriptor: of the directory while it is open here, else -1.

    Args:
        parent: the directory to make it in; None for XDG_RUNTIME_DIR, TMPDIR or /tmp, the first that is safe.
    """

    def __init__(self, parent: str | None = None) -> None:
        parent = _safe_parent() if parent is None else parent
        self._name = PREFIX + os.urandom(DIGITS // 2).hex()
        self.path = os.path.join(parent, self._name)
        try:
            self._parent = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            self._parent = -1  # most jobs need no directory: `make` raises for those that do
        self.descriptor = -1
        self._entries: set[str] = set()

    @property
    def descriptors(self) -> tuple[int, int]:
        """Descriptors that a forked process must keep open to use this object."""
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
        _try(_lock, descriptor)  # without success on a file system without locks: no sweep will take it
        self.descriptor = descriptor

    def reserve(self, entry: str) -> str:
        """Return the path of a new entry, which the caller makes; raises OSError."""
        self.make()
        self._entries.add(entry)
        return os.path.join(self.path, entry)

    def release(self, entry: str) -> None:
        """Remove an entry with everything in it, and with the last entry the directory."""
        if self.descriptor >= 0 and not _try(os.unlink, entry, dir_fd=self.descriptor):
            _take_over(self.descriptor, entry, must_lock=False)
        self._entries.discard(entry)
        if not self._entries:
            self.remove()

    def remove(self) -> None:
        """Remove the directory if it was made. To be called by the process that made it."""
        if self.descriptor >= 0:
            _remove(self._parent, self._name, self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1
            self._entries.clear()

    def remove_abandoned(self) -> None:
        """Remove the directory that a dead daemon made. To be called by its guard."""
        if self._parent >= 0:
            _take_over(self._parent, self._name, must_lock=False)

    def sweep(self) -> None:
        """Remove the directories beside this one that belong to dead jobs of this user."""
        deadline, swept = time.monotonic() + REMOVE_SECONDS, 0
        names = [name for name in _names_at(self._parent) if _is_ours(name) and name != self._name]
        begin = int.from_bytes(os.urandom(4), "big") % max(1, len(names))
        for name in itertools.islice(itertools.chain(names[begin:], names[:begin]), MOST_EXAMINED):
            if swept == MOST_SWEPT or time.monotonic() > deadline:
                return
            try:
                status = os.stat(name, dir_fd=self._parent, follow_symlinks=False)
            except OSError:
                continue
            old = time.time() - status.st_mtime >= YOUNGEST_SWEPT
            if old and status.st_uid == os.geteuid() and _take_over(self._parent, name, must_lock=True):
                swept += 1

    def close(self) -> None:
        """Close the descriptors; nothing more can be made or removed."""
        for descriptor in self.descriptors:
            if descriptor >= 0:
                os.close(descriptor)
        self._parent = self.descriptor = -1


def _safe_parent() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if len(os.fsencode(runtime)) <= LONGEST_RUNTIME and _is_usable(runtime):
        status = os.stat(runtime)
        if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
            return runtime
    temporary = os.environ.get("TMPDIR", "")
    return temporary if _is_usable(temporary) else "/tmp"


def _is_usable(path: str) -> bool:
    """Return whether this user can write there, and no other user but root can rename what is made there."""
    if not os.path.isabs(path) or "\0" in path:
        return False
    try:
        status = os.stat(path)
    except OSError:
        return False
    others_write = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
    safe = stat.S_ISDIR(status.st_mode) and status.st_uid in (0, os.geteuid()) and not others_write
    return safe and os.access(path, os.W_OK | os.X_OK)


def _take_over(parent: int, name: str, must_lock: bool) -> bool:
    """Remove a directory whose processes have died; return False when it is missing, not ours, in use or, with `must_lock`, on
    a file system without locks."""
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
    """Lock a directory for this process and its forks; raises BlockingIOError when another process holds the lock."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove(parent: int, name: str, descriptor: int) -> bool:
    """Empty a directory, and remove it if it still has this name; return whether it is gone."""
    _empty(descriptor)
    try:
        if not os.path.samestat(os.stat(name, dir_fd=parent, follow_symlinks=False), os.fstat(descriptor)):
            return False
        os.rmdir(name, dir_fd=parent)
    except OSError:
        return False
    return True


def _empty(root: int) -> None:
    """Remove all entries of a directory that can be removed; links are removed and not followed.

    Each round moves the directories below the top level up to it, so that trees of any depth need two descriptors.
    """
    deadline = time.monotonic() + REMOVE_SECONDS
    moved = 0
    while time.monotonic() < deadline:
        progress = False
        for name in _names(root):
            if _try(os.unlink, name, dir_fd=root):
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
                    if not _try(os.unlink, inner, dir_fd=folder):
                        moved += 1
                        new_name = "moved-%d-%d" % (os.getpid(), moved)
                        progress |= _try(os.rename, inner, new_name, src_dir_fd=folder, dst_dir_fd=root)
                progress |= _try(os.rmdir, name, dir_fd=root)
            finally:
                os.close(folder)
        if not progress:
            return


def _try(function: Callable[..., object], *arguments: object, **descriptors: object) -> bool:
    """Call a function of the file system; return whether it succeeded. The kernel refuses to unlink a directory."""
    try:
        function(*arguments, **descriptors)
    except OSError:
        return False
    return True


def _names_at(path_only: int) -> list[str]:
    """Return the names in a directory whose descriptor was opened with O_PATH."""
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
        with os.scandir(descriptor) as entries:
            return [entry.name for entry in itertools.islice(entries, MOST_LISTED)]
    except OSError:
        return []


def _is_ours(name: str) -> bool:
    digits = name[len(PREFIX) :]
    return name.startswith(PREFIX) and len(digits) == DIGITS and set(digits) <= set("0123456789abcdef")


def _is_private(descriptor: int) -> bool:
    """Return whether an open directory is this user's own, and closed to all others."""
    status = os.fstat(descriptor)
    return status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & 0o777 == 0o700
