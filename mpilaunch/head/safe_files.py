"""Open and write files safely in directories where other users may have placed links or files.

Everything the head writes for the user goes through this module: ranks' output, reports, checkpoint sets and the cache.

A path is walked component by component with directory descriptors, so nothing can be exchanged between a check and its use.
This module must never follow a link of a third user, write to a file of a third user, adopt the mode of such a file, wait for
the other end of a pipe, or decide by the spelling of a path. It refuses with `UnsafePath`, an OSError.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mpilaunch.job import trust

PATIENCE = 20.0
"""Seconds in which the reader of a pipe must take something."""
FILE_MODE = 0o644
DIRECTORY_MODE = 0o775
"""Modes before the umask. Not 0777: with a umask of 0 that would make a directory in which we refuse to write."""
MOST_LINKS = 40
"""Links followed in one path: the kernel's limit."""

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_CREAT | os.O_EXCL
OWN_DIRECTORY = "make a directory of your own and write there"


class UnsafePath(PermissionError):
    """A path where another user could decide which file is written; `hint` advises the user."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(errno.EPERM, message)
        self.hint = hint


def hint_of(error: OSError) -> str | None:
    """Return the hint of an error, if it has one."""
    return error.hint if isinstance(error, UnsafePath) else None


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Place:
    """The entry of a directory to which a path leads.

    Attributes:
        directory: an O_PATH descriptor of the directory.
        name: the last component.
        status: of the file there, None when there is none.
        own: the number of this process's descriptor that the path means, as /dev/stdout does.
    """

    status: os.stat_result | None = None
    own: int | None = None

    def __init__(self, directory: int) -> None:
        self.directory, self.name = directory, "."

    def look(self, name: str) -> int:
        """Step to a name in the directory; return an O_PATH descriptor of it, which may be a link; raises OSError."""
        self.name, self.status = name, None
        entry = os.open(name, _LOOK, dir_fd=self.directory)
        self.status = os.fstat(entry)
        return entry

    def enter(self, directory: int, *, check: bool = False) -> None:
        """Continue from another directory; with `check`, raise UnsafePath when every user may exchange it."""
        try:
            if check:
                self.check_directory()
        finally:
            # An interrupt that comes behind the call must not find a descriptor here that is closed.
            left, self.directory = self.directory, directory
            os.close(left)

    def check_directory(self) -> None:
        """Raise UnsafePath when every user may replace the files in the directory."""
        if trust.is_unprotected(os.fstat(self.directory)):
            raise UnsafePath("every user may rename and remove files in its directory, which has no sticky bit", OWN_DIRECTORY)

    def may_create(self) -> bool:
        """Return whether this process may create and rename files in the directory."""
        return os.access(".", os.W_OK | os.X_OK, dir_fd=self.directory, effective_ids=True)

    def check(self, status: os.stat_result, *, named: bool) -> None:
        """Raise OSError unless the file may be written to; one that the user `named` exactly may be a device or a pipe."""
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            raise _error(errno.EISDIR)
        if kind == stat.S_IFLNK:
            raise UnsafePath("a link stands there, which is not followed", "remove it")
        if kind != stat.S_IFREG and not (named and kind in (stat.S_IFCHR, stat.S_IFIFO)):
            raise UnsafePath("it is not a regular file", "remove it, or choose another path")
        if kind == stat.S_IFCHR:
            return  # only root can make devices
        if trust.is_foreign(status):
            raise UnsafePath(f"the file belongs to {trust.owner_of(status)}", "remove it, or " + OWN_DIRECTORY)
        if kind == stat.S_IFREG and status.st_nlink > 1:
            raise UnsafePath(f"the file has {status.st_nlink} names (hard links)", "remove it first")
        self.check_directory()

    def open(self, flags: int, *, named: bool) -> int:
        """Open the existing file for writing, and check it again by its descriptor; raises OSError."""
        assert self.status is not None
        self.check(self.status, named=named)  # opening a device may have side effects
        descriptor = os.open(self.name, _WRITE | flags, dir_fd=self.directory)
        try:
            self.check(os.fstat(descriptor), named=named)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


@contextmanager
def _find(path: str, *, make: bool = False, follow: bool = True, parents: bool = False) -> Iterator[Place]:
    """Walk to the last component of a path, and make missing directories or follow a link there if asked; raises OSError.

    With `parents`, every directory on the way is checked too.
    """
    if not path or "\0" in path:
        raise _error(errno.ENOENT)
    place = Place(_root(path))
    parts = deque(path.split("/"))
    links = 0
    try:
        while parts:
            name = parts.popleft()
            if name in ("", ".") and parts:
                continue
            try:
                entry = place.look(name or ".")
            except FileNotFoundError:
                if not parts:
                    break
                if not make:
                    raise
                with suppress(FileExistsError):
                    os.mkdir(name, DIRECTORY_MODE, dir_fd=place.directory)
                entry = place.look(name)
            assert place.status is not None
            if stat.S_ISLNK(place.status.st_mode) and (parts or follow):
                try:
                    if not parts and _is_one_of(place.directory, "/proc/self/fd"):  # /dev/stdout and /dev/fd lead there
                        place.own = int(name)
                        break
                    links += 1
                    target = _target(place, entry, links)
                finally:
                    os.close(entry)
                if target.startswith("/"):
                    place.enter(_root(target))
                parts.extendleft(reversed(target.split("/")))
            elif parts:
                place.enter(entry, check=parents)
            else:
                os.close(entry)
        yield place
    finally:
        os.close(place.directory)


def _root(path: str) -> int:
    return os.open("/" if path.startswith("/") else ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _target(place: Place, link: int, links: int) -> str:
    """Return the target of a link; raises OSError for a link that another user may have placed."""
    assert place.status is not None
    # Only root makes links in /dev and /proc; in a user namespace without root they seem to belong to a third user.
    if trust.is_foreign(place.status) and not _is_one_of(place.directory, "/dev", "/proc"):
        hint = "give the path that it leads to, if you trust it"
        raise UnsafePath(f"'{place.name}' is a link that belongs to {trust.owner_of(place.status)}", hint)
    if place.status.st_nlink > 1:
        raise UnsafePath(f"the link '{place.name}' has {place.status.st_nlink} names (hard links)", "remove it first")
    place.check_directory()
    if links > MOST_LINKS:
        raise _error(errno.ELOOP)
    return os.readlink("", dir_fd=link)


def _is_one_of(directory: int, *paths: str) -> bool:
    status = os.fstat(directory)
    for path in paths:
        with suppress(OSError):
            if os.path.samestat(status, os.stat(path)):
                return True
    return False


@contextmanager
def directory(path: str, *, make: bool = False, parents: bool = False) -> Iterator[int]:
    """Yield a descriptor of a directory for use as `dir_fd`; raises OSError when it is unsafe.

    Args:
        make: make what is missing.
        parents: no directory on the way may be one where every user could exchange the next.
    """
    with _find(path + "/.", make=make, parents=parents) as place:
        place.check_directory()
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place.directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def private_directory(path: str, *, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of a directory that is private to this user and in none of another user; raises OSError.

    Args:
        make: make the directory and those above it where they are missing.
    """
    parent, name = os.path.split(path)
    if make and not os.path.isdir(parent):
        _refuse_foreign(os.path.dirname(parent), os.stat(os.path.dirname(parent)))
    with directory(parent, make=make) as above:
        _refuse_foreign(parent, os.fstat(above))
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=above)
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        check_own(path, os.fstat(descriptor), 0o077)
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse_foreign(path: str, status: os.stat_result) -> None:
    if trust.is_foreign(status):
        raise PermissionError(f"{path} belongs to {trust.owner_of(status)}")


def make_directory(path: str) -> None:
    """Make a directory and its parents unless they exist; raises OSError, also when the directory is unsafe."""
    with _find(path + "/.", make=True) as place:
        place.check_directory()


def make_new_directory(path: str) -> None:
    """Make a directory that must not exist yet, and its parents where they are missing; raises OSError."""
    with _find(path, make=True, follow=False) as place:
        place.check_directory()
        os.mkdir(place.name, DIRECTORY_MODE, dir_fd=place.directory)


# Files that are written piece by piece


def open_output(path: str, *, append: bool, named: bool) -> int:
    """Open a file for writing, making it and its parents where they are missing; raises OSError.

    Args:
        append: keep the present content.
        named: the user gave exactly this path: a link of the user is followed, and it may be a device or a pipe.
    """
    flags = os.O_APPEND if append else 0
    with _find(path, make=True, follow=named) as place:
        if place.own is not None:
            return os.dup(place.own)
        if place.status is None:
            place.check_directory()
            with suppress(FileExistsError):  # another process has just made it: check it like any other
                return os.open(place.name, _WRITE | _NEW | flags, FILE_MODE, dir_fd=place.directory)
            os.close(place.look(place.name))
        descriptor = place.open(flags, named=named)
    if not append and stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.ftruncate(descriptor, 0)
    return descriptor


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes; raises OSError, also when a pipe's reader takes nothing for PATIENCE seconds."""
    view = memoryview(data)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        while view:
            view = view[os.write(descriptor, view) :]
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    while view:
        if not poll.poll(PATIENCE * 1000):
            raise TimeoutError(errno.ETIMEDOUT, f"nobody has read it for {PATIENCE:g} s")
        with suppress(BlockingIOError):
            # The descriptor may be blocking; a pipe that poll reports as writable takes PIPE_BUF bytes without blocking.
            view = view[os.write(descriptor, view[: select.PIPE_BUF]) :]


# Files that are read or written in one piece


def check_own(path: str, status: os.stat_result, forbidden: int = 0) -> None:
    """Raise OSError unless a file or directory belongs to this user and its mode has no bit of `forbidden`."""
    if status.st_uid != os.geteuid() or status.st_mode & forbidden:
        raise PermissionError(f"{path} belongs to another user, or is open to others")


def read_own(directory: int, name: str, forbidden: int, most: int = -1) -> bytes:
    """Return the content of this user's file in a directory, at most `most` bytes of it; raises OSError."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        check_own(name, status, forbidden)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{name} is not a regular file")
        return file.read(most)


def check_file(path: str) -> None:
    """Make the missing directories of a file, and raise OSError when `write_file` could not write it."""
    with _find(path, make=True) as place:
        if place.own is not None:
            return
        if place.status is not None:
            place.check(place.status, named=True)
            if os.access(place.name, os.W_OK, dir_fd=place.directory, effective_ids=True):
                return
        place.check_directory()
        if not (_is_replaceable(place) and place.may_create()):
            raise PermissionError(errno.EACCES, "no file can be written there")


def write_file(path: str, data: bytes) -> None:
    """Write a file by replacing it with its permissions, or write to a device or a pipe; raises OSError.

    Missing directories are made.
    """
    with _find(path, make=True) as place:
        if place.own is not None:
            descriptor = os.dup(place.own)
        elif _is_replaceable(place) and place.may_create():
            _replace(place, data)
            return
        else:
            descriptor = place.open(0, named=True)
        with open(descriptor, "wb", buffering=0):
            if place.own is None and stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.ftruncate(descriptor, 0)
            write_all(descriptor, data)


def _is_replaceable(place: Place) -> bool:
    """Return whether there is no file, or a regular file of this user; a writable file of root is not replaced."""
    status = place.status
    return status is None or (stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid())


def _replace(place: Place, data: bytes) -> None:
    place.check_directory()
    if place.status is not None:
        place.check(place.status, named=True)
    mode = None if place.status is None else stat.S_IMODE(place.status.st_mode) & 0o666
    replace_in(place.directory, place.name, data, mode)


def replace_in(directory: int, name: str, data: bytes, mode: int | None = None) -> None:
    """Replace a file in a directory by a new one, with FILE_MODE less the umask where no mode is given; raises OSError."""
    # Another user cannot guess this name and occupy it; concurrent launches have one each, and the last rename wins.
    partial = f".mpilaunch-{os.urandom(8).hex()}.part"
    descriptor = os.open(partial, _WRITE | _NEW, FILE_MODE if mode is None else mode & FILE_MODE, dir_fd=directory)
    try:
        with open(descriptor, "wb", buffering=0):
            if mode is not None:
                os.fchmod(descriptor, mode)
            write_all(descriptor, data)
        os.rename(partial, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial, dir_fd=directory)
        raise
