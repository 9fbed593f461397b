"""Unpacks a tar archive that may be hostile in a private directory, and moves what has come whole to its place.

Nothing is written through a link: where the archive is unpacked, links are made last, and where its files are put, each
directory is opened and belongs to the user. Only files, directories and links are taken, without owners, set-user-ID bits and
write permission for others. What cannot be done is noted, and the rest is done.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, NamedTuple

from mpilaunch.cli.files import current_umask
from mpilaunch.errors import reason_of

BROKEN = b"B"
"""Type of an entry without data, which says that the file of this name could not be read to its end; `sender` writes it."""
_LONG = {tarfile.GNUTYPE_LONGNAME: "name", tarfile.GNUTYPE_LONGLINK: "linkname"}
_LONGEST, _DEEPEST = 64 << 10, 100
"""Bytes of a name, and parts of a path."""
_PAX = "the archive is in the format of POSIX 2001, which is not taken: use tar --format=gnu"
_REFUSED = {
    tarfile.XHDTYPE: _PAX,
    tarfile.XGLTYPE: _PAX,
    tarfile.SOLARIS_XHDTYPE: _PAX,
    tarfile.GNUTYPE_SPARSE: "the archive has a file with holes, which is not taken: leave out tar's option --sparse",
    b"D": "the archive is an incremental one, which is not taken: leave out tar's option --listed-incremental",
}
"""Type of an entry to the reason why no archive with one is taken."""
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_WITHOUT_DATA = (tarfile.DIRTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
_TAKEN = (*_FILES, tarfile.DIRTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, BROKEN)
_BLOCK, _CHUNK = tarfile.BLOCKSIZE, 1 << 20
_PERMISSIONS = 0o775
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Parts = tuple[str, ...]
"""A path below the root of an archive."""


class _Attributes(NamedTuple):
    """The mode and the time of a directory."""

    mode: int
    mtime: float


class Tree:
    """Files that are unpacked below an empty directory and then moved away.

    Attributes:
        faults: messages on what has not come, or could not be put into its place.
    """

    def __init__(self, root: str) -> None:
        self.faults: list[str] = []
        self._root = root
        self._attributes: dict[Parts, _Attributes] = {}
        self._links: dict[Parts, str] = {}
        self._new_mode = _PERMISSIONS & ~current_umask()

    # Unpacking

    def unpack(self, archive: IO[bytes]) -> None:
        """Write what an archive contains."""
        try:
            for entry in _entries(archive):
                parts = _parts(entry.name)
                with self._noted(parts):
                    if parts:
                        self._take(archive, entry, parts)
        except (OSError, tarfile.TarError) as error:
            self.faults.append(f"the files have not come whole: {_reason(error)}")
        for parts, link in self._links.items():
            with self._noted(parts):
                os.symlink(link, self._path(parts))

    def _take(self, archive: IO[bytes], entry: tarfile.TarInfo, parts: Parts) -> None:
        source = _parts(entry.linkname) if entry.type == tarfile.LNKTYPE else ()
        if source == parts:
            return  # a second name that is the first one
        for length in range(1, len(parts)):
            self._make(parts[:length])
        path = self._path(parts)
        self._links.pop(parts, None)
        if entry.type == tarfile.DIRTYPE:
            self._make(parts)
            self._attributes[parts] = _Attributes(entry.mode & _PERMISSIONS, entry.mtime)
            return
        with suppress(FileNotFoundError):
            os.unlink(path)
        if entry.type == BROKEN:
            raise OSError(0, "it could not be read to its end")
        if entry.type == tarfile.SYMTYPE:
            self._links[parts] = entry.linkname
        elif source in self._links:
            self._links[parts] = self._links[source]
        elif entry.type == tarfile.LNKTYPE:
            os.link(self._path(source), path, follow_symlinks=False)
        else:
            _write(archive, entry, path)

    def _make(self, parts: Parts) -> None:
        self._links.pop(parts, None)
        try:
            os.mkdir(self._path(parts), 0o700)
        except FileExistsError:
            if not os.path.isdir(self._path(parts)):
                raise NotADirectoryError(20, "Not a directory") from None

    def _path(self, parts: Parts) -> str:
        return os.path.join(self._root, *parts)

    # Moving

    def move(self, directory: str, suffix: str) -> None:
        """Move all to its place in a directory, and give directories their modes and times."""
        with _opened(self._root) as source, _opened(directory, flags=os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as target:
            for name in os.listdir(source):
                self._put(source, target, (name,), name + suffix, name + suffix)

    def _put(self, source: int, target: int, parts: Parts, name: str, top: str) -> None:
        """Move an entry of one open directory into another one, where it gets a name; `top` stands for the first part then."""
        with self._noted((top, *parts[1:])):
            if stat.S_ISDIR(os.stat(parts[-1], dir_fd=source, follow_symlinks=False).st_mode):
                self._join(source, target, parts, name, top)
            else:
                os.replace(parts[-1], name, src_dir_fd=source, dst_dir_fd=target)

    def _join(self, source: int, target: int, parts: Parts, name: str, top: str) -> None:
        """Move what a directory contains into one of the user's own, which is made where there is none."""
        new = True
        try:
            os.mkdir(name, 0o700, dir_fd=target)
        except FileExistsError:
            new = False
        with _opened(name, target) as there, _opened(parts[-1], source) as here:
            found = os.fstat(there)
            if found.st_uid != os.geteuid():
                raise PermissionError(1, "it belongs to another user")
            os.fchmod(there, stat.S_IMODE(found.st_mode) | 0o700)
            for member in os.listdir(here):
                self._put(here, there, (*parts, member), member, top)
            told = self._attributes.get(parts)
            os.fchmod(there, told.mode if told else self._new_mode if new else stat.S_IMODE(found.st_mode))
            if told:
                _set_time(there, told.mtime)

    @contextmanager
    def _noted(self, parts: Parts) -> Iterator[None]:
        """Note what prevents an action on an entry."""
        try:
            yield
        except (OSError, ValueError) as error:  # a name may contain what no name of a file can
            self.faults.append(f"{'/'.join(parts)}: {_reason(error)}")


def _reason(error: Exception) -> str:
    return reason_of(error) if isinstance(error, OSError) else str(error)


@contextmanager
def _opened(path: str, folder: int | None = None, flags: int = _OPEN_DIRECTORY) -> Iterator[int]:
    descriptor = os.open(path, flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _entries(archive: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yield the entries that are taken, each while the archive stands at its data; raises TarError and OSError.

    The formats are those of GNU tar and POSIX 1988; tarfile reads the headers only, since its patterns for the headers of
    POSIX 2001 take time by the square of their length in some versions.
    """
    long: dict[str, str] = {}
    while True:
        header = archive.read(_BLOCK)
        if len(header) == _BLOCK and not header.strip(b"\0"):
            return
        if len(header) < _BLOCK:
            raise tarfile.ReadError("the archive has no end" if archive.tell() >= _BLOCK else "stdout is no tar archive")
        start = archive.tell()
        try:
            entry = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise tarfile.ReadError("stdout is no tar archive" if start == _BLOCK else "the archive is damaged") from error
        if entry.type in _REFUSED:
            raise tarfile.ReadError(_REFUSED[entry.type])
        if entry.size < 0 or (entry.type in _LONG and entry.size > _LONGEST):
            raise tarfile.ReadError("the archive has an entry of a size that cannot be")
        if entry.type in _LONG:
            long[_LONG[entry.type]] = archive.read(entry.size).partition(b"\0")[0].decode("utf-8", "surrogateescape")
        else:
            entry.name, entry.linkname = long.get("name", entry.name), long.get("linkname", entry.linkname)
            long.clear()
            if entry.type in _TAKEN:
                yield entry
        size = 0 if entry.type in _WITHOUT_DATA else entry.size
        archive.seek(start + -(-size // _BLOCK) * _BLOCK)


def _parts(name: str) -> Parts:
    """Return the parts of a name below the root; raises ReadError for one that leads elsewhere, or is far too deep."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise tarfile.ReadError(f"{name} leads out of the archive")
    if len(parts) > _DEEPEST:
        raise tarfile.ReadError(f"a path has {len(parts)} parts: more than {_DEEPEST} are not taken")
    return parts


def _write(archive: IO[bytes], entry: tarfile.TarInfo, path: str) -> None:
    """Write a file; one that cannot be written whole is removed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            left = entry.size
            while left:
                data = archive.read(min(left, _CHUNK))
                if not data:
                    raise tarfile.ReadError(f"{entry.name}: the archive ends within it")
                file.write(data)
                left -= len(data)
            file.flush()
            os.fchmod(descriptor, entry.mode & _PERMISSIONS)
            _set_time(descriptor, entry.mtime)
    except BaseException:
        os.unlink(path)
        raise


def _set_time(descriptor: int, mtime: float) -> None:
    with suppress(OverflowError):  # a time that no clock shows
        os.utime(descriptor, (mtime, mtime))
