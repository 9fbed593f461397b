"""Opens and writes the files of a launch, also where other users may have put something in the way.

Whatever the head writes on behalf of the user goes through here.

A path is walked one component at a time by directory descriptors, so that nothing can be exchanged between a check and its
use. It must never follow a link of a third user, write into a file of a third user, take over the mode of such a file, wait for
the other end of a pipe, or decide by the spelling of a path. What it refuses is an `UnsafePath`, which is an OSError.
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
"""Seconds that the reader of a pipe may take nothing. The head answers no node meanwhile: it is less than --heartbeat."""
FILE_MODE = 0o644
DIRECTORY_MODE = 0o775
"""Both less the umask. Not 0777: a umask of 0 must not make a directory in which we would refuse to write."""
MOST_LINKS = 40
"""As many as the kernel follows."""

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_CREAT | os.O_EXCL
OWN_DIRECTORY = "make a directory of your own and write there"


class UnsafePath(PermissionError):
    """A path where another user could choose what we write to.

    Attributes:
        hint: what to do.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(errno.EPERM, message)
        self.hint = hint


def hint_of(error: OSError) -> str | None:
    """Return what to do about an error, None where nobody can say."""
    return error.hint if isinstance(error, UnsafePath) else None


class Place:
    """Where a path leads.

    Attributes:
        directory: a descriptor of the directory, without the right to read it.
        name: the last component.
        status: what is there, None when nothing is.
        own: the number of a descriptor of this process that the path means, as /dev/stdout does.
    """

    def __init__(self, directory: int) -> None:
        self.directory = directory
        self.name = "."
        self.status: os.stat_result | None = None
        self.own: int | None = None

    def look(self, name: str) -> int:
        """Take one step to a name; return a descriptor of what is there, which may be a link; raises OSError."""
        self.name, self.status = name, None
        entry = os.open(name, _LOOK, dir_fd=self.directory)
        self.status = os.fstat(entry)
        return entry

    def enter(self, directory: int) -> None:
        """Go on from another directory."""
        os.close(self.directory)
        self.directory = directory

    def check_directory(self) -> None:
        """Raise UnsafePath when every user may exchange the files in the directory."""
        if trust.is_unprotected(os.fstat(self.directory)):
            raise UnsafePath("every user may rename and remove files in its directory, which has no sticky bit", OWN_DIRECTORY)

    def may_create(self) -> bool:
        """Say whether we may make and rename files in the directory."""
        return os.access(".", os.W_OK | os.X_OK, dir_fd=self.directory, effective_ids=True)

    def check(self, status: os.stat_result, *, named: bool) -> None:
        """Raise OSError unless what is there may be written to.

        Args:
            named: the user named exactly this path: it may be a device or a pipe.
        """
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if kind == stat.S_IFLNK:
            raise UnsafePath("a link stands there, which is not followed", "remove it")
        if kind != stat.S_IFREG and not (named and kind in (stat.S_IFCHR, stat.S_IFIFO)):
            raise UnsafePath("what is there is no file", "remove it, or choose another path")
        if kind == stat.S_IFCHR:
            return  # nobody but root makes devices
        if trust.is_foreign(status):
            raise UnsafePath(f"what is there belongs to {trust.owner_of(status)}", "remove it, or " + OWN_DIRECTORY)
        if kind == stat.S_IFREG and status.st_nlink > 1:
            raise UnsafePath(f"the file has {status.st_nlink} names (hard links)", "remove it first")
        self.check_directory()

    def open(self, flags: int, *, named: bool) -> int:
        """Open what is there for writing, and check it by the descriptor; raises OSError."""
        assert self.status is not None
        self.check(self.status, named=named)  # before the opening, which a device may notice
        descriptor = os.open(self.name, _WRITE | flags, dir_fd=self.directory)
        try:
            self.check(os.fstat(descriptor), named=named)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


@contextmanager
def _find(path: str, *, make: bool = False, follow: bool = True) -> Iterator[Place]:
    """Walk to the last component of a path; raises OSError.

    Args:
        make: make the directories that are missing.
        follow: follow a link in the last component, too.
    """
    if not path or "\0" in path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
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
                place.enter(entry)
            else:
                os.close(entry)
        yield place
    finally:
        os.close(place.directory)


def _root(path: str) -> int:
    return os.open("/" if path.startswith("/") else ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _target(place: Place, link: int, links: int) -> str:
    """Return where a link leads; raises OSError for one that another user may have put there."""
    assert place.status is not None
    # Only root makes links in /dev and /proc; in a user namespace that does not know root they seem to be a third user's.
    if trust.is_foreign(place.status) and not _is_one_of(place.directory, "/dev", "/proc"):
        hint = "name the path that it leads to, if that is what you mean"
        raise UnsafePath(f"'{place.name}' is a link that belongs to {trust.owner_of(place.status)}", hint)
    if place.status.st_nlink > 1:
        raise UnsafePath(f"the link '{place.name}' has {place.status.st_nlink} names (hard links)", "remove it first")
    place.check_directory()
    if links > MOST_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return os.readlink("", dir_fd=link)


def _is_one_of(directory: int, *paths: str) -> bool:
    """Say whether a directory is one of the system's."""
    status = os.fstat(directory)
    for path in paths:
        with suppress(OSError):
            if os.path.samestat(status, os.stat(path)):
                return True
    return False


@contextmanager
def directory(path: str, *, make: bool = False) -> Iterator[int]:
    """Give a descriptor of a directory, to work in by `dir_fd`; raises OSError, UnsafePath where every user may exchange files.

    Args:
        make: make it, and those above it, where they are missing.
    """
    with _find(path + "/.", make=make) as place:
        place.check_directory()
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place.directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_directory(path: str) -> None:
    """See to it that a directory is there in which files can be written; raises OSError."""
    with _find(path + "/.", make=True) as place:
        place.check_directory()


def make_new_directory(path: str) -> None:
    """Make a directory that is not there yet, and those above it where they are missing; raises OSError."""
    with _find(path, make=True, follow=False) as place:
        place.check_directory()
        os.mkdir(place.name, DIRECTORY_MODE, dir_fd=place.directory)


# Files that are written as they grow


def open_output(path: str, *, append: bool, named: bool) -> int:
    """Open a file for writing, made with the directories above it where it is missing; raises OSError.

    Args:
        append: keep what our file has already.
        named: the user named exactly this path: a link of his is followed, and it may be a device or a pipe.
    """
    flags = os.O_APPEND if append else 0
    with _find(path, make=True, follow=named) as place:
        if place.own is not None:
            return os.dup(place.own)
        if place.status is None:
            place.check_directory()
            with suppress(FileExistsError):  # just made by somebody: it is checked like any other
                return os.open(place.name, _WRITE | _NEW | flags, FILE_MODE, dir_fd=place.directory)
            os.close(place.look(place.name))
        descriptor = place.open(flags, named=named)
    if not append and stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.ftruncate(descriptor, 0)
    return descriptor


def write_all(descriptor: int, data: bytes) -> None:
    """Write bytes; raises OSError, after PATIENCE seconds in which a pipe's reader takes nothing."""
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
            # No more than a pipe takes at once when poll says that it takes something: the descriptor may be a blocking one.
            view = view[os.write(descriptor, view[: select.PIPE_BUF]) :]


# Files that appear whole


def check_file(path: str) -> None:
    """See whether `write_file` could write a file; raises OSError. Nothing is changed."""
    with _find(path) as place:
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
    """Put a new file in the place of another, or write into a device or a pipe; raises OSError.

    A file of ours is followed by one with the same permissions; a new one has FILE_MODE.
    """
    with _find(path) as place:
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
    """Say whether nothing is there, or a file of ours; root's, which another user may be let to write, is written into."""
    status = place.status
    return status is None or (stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid())


def _replace(place: Place, data: bytes) -> None:
    place.check_directory()
    if place.status is not None:
        place.check(place.status, named=True)
    # A name that nobody can guess, and so occupy.
    partial = f".mpilaunch-{os.urandom(8).hex()}.part"
    descriptor = os.open(partial, _WRITE | _NEW, FILE_MODE, dir_fd=place.directory)
    try:
        with open(descriptor, "wb", buffering=0):
            if place.status is not None:
                os.fchmod(descriptor, stat.S_IMODE(place.status.st_mode) & 0o666)
            write_all(descriptor, data)
        os.rename(partial, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial, dir_fd=place.directory)
        raise
