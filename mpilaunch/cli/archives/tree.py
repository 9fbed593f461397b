"""Unpacks a tar archive that may be hostile in a private directory, and moves what has come whole to its place.

Nothing is written through a link: links are made last, in a directory that nobody else can change. Only files, directories and
links are taken, without owners, set-user-ID bits and write permission for others.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, NamedTuple

_LONG = {tarfile.GNUTYPE_LONGNAME: "name", tarfile.GNUTYPE_LONGLINK: "linkname"}
_LONGEST, _DEEPEST = 64 << 10, 100
"""Bytes of a name, and parts of a path."""
_PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_WITHOUT_DATA = (tarfile.DIRTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
_TAKEN = (*_FILES, tarfile.DIRTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE)
_BLOCK, _CHUNK = tarfile.BLOCKSIZE, 1 << 20
_PERMISSIONS = 0o775


class _Directory(NamedTuple):
    """What a directory gets when all is in its place; no time for one of which an archive does not tell."""

    mode: int
    mtime: float | None


class Tree:
    """Files that are unpacked below an empty directory and then moved away."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._directories: dict[tuple[str, ...], _Directory] = {}
        self._links: dict[tuple[str, ...], str] = {}
        mask = os.umask(0o077)
        os.umask(mask)
        self._default = _Directory(0o777 & ~mask, None)

    def unpack(self, archive: IO[bytes]) -> None:
        """Write what an archive contains; raises OSError, TarError, ValueError and OverflowError, and keeps what has come."""
        try:
            for entry in _entries(archive):
                if parts := _parts(entry.name):
                    self._take(archive, entry, parts)
        finally:
            for parts, link in self._links.items():
                os.symlink(link, self._path(parts))

    def _take(self, archive: IO[bytes], entry: tarfile.TarInfo, parts: tuple[str, ...]) -> None:
        path = self._path(parts)
        for length in range(1, len(parts)):
            self._make(parts[:length])
        self._links.pop(parts, None)
        if entry.type == tarfile.DIRTYPE:
            self._make(parts)
            self._directories[parts] = _Directory(entry.mode & _PERMISSIONS, entry.mtime)
            return
        with suppress(FileNotFoundError):
            os.unlink(path)
        source = _parts(entry.linkname) if entry.type == tarfile.LNKTYPE else ()
        if entry.type == tarfile.SYMTYPE:
            self._links[parts] = entry.linkname
        elif source in self._links:
            self._links[parts] = self._links[source]
        elif entry.type == tarfile.LNKTYPE:
            os.link(self._path(source), path, follow_symlinks=False)
        else:
            _write(archive, entry, path)

    def _make(self, parts: tuple[str, ...]) -> None:
        self._links.pop(parts, None)
        with suppress(FileExistsError):  # if it is no directory, what comes into it fails
            os.mkdir(self._path(parts), 0o700)
            self._directories.setdefault(parts, self._default)

    def _path(self, parts: tuple[str, ...]) -> str:
        return os.path.join(self._root, *parts)

    def move(self, directory: str, suffix: str) -> Iterator[OSError]:
        """Move all to its place in a directory, and give directories their modes and times; yield what prevented it."""
        for name in os.listdir(self._root):
            try:
                _move(os.path.join(self._root, name), os.path.join(directory, name + suffix))
                for (top, *rest), found in reversed(self._directories.items()):
                    if top == name:
                        _set_directory(os.path.join(directory, name + suffix, *rest), found)
            except OSError as error:
                yield error


def _entries(archive: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yield the files, directories and links of an archive, each while the archive stands at its data; raises TarError.

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
        if entry.type in _PAX:
            raise tarfile.ReadError("the archive is in the format of POSIX 2001, which is not taken: use tar --format=gnu")
        if entry.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(f"{entry.name} has holes, which are not taken: leave out tar's option --sparse")
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


def _parts(name: str) -> tuple[str, ...]:
    """Return the parts of a name below the root; raises ReadError for one that leads elsewhere, or is far too deep."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise tarfile.ReadError(f"{name} leads out of the archive")
    if len(parts) > _DEEPEST:
        raise tarfile.ReadError(f"a path has {len(parts)} parts: more than {_DEEPEST} are not taken")
    return parts


def _write(archive: IO[bytes], entry: tarfile.TarInfo, path: str) -> None:
    """Write a file; one that cannot be written whole is removed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
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
            os.utime(descriptor, (entry.mtime, entry.mtime))
    except BaseException as error:
        os.unlink(path)
        if isinstance(error, OSError):
            error.filename = path
        raise


def _set_directory(path: str, found: _Directory) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if found.mtime is not None:
            os.utime(descriptor, (found.mtime, found.mtime))
        os.fchmod(descriptor, found.mode)
    except OverflowError:
        pass  # a time that no clock shows
    finally:
        os.close(descriptor)


def _move(source: str, target: str) -> None:
    """Move a file, a link or a directory; a directory joins one of the same name that is the user's own."""
    with suppress(FileNotFoundError):
        there = os.lstat(target)
        if stat.S_ISDIR(there.st_mode) and stat.S_ISDIR(os.lstat(source).st_mode):
            if there.st_uid != os.geteuid():
                raise PermissionError(1, "it belongs to another user", target)
            os.chmod(target, stat.S_IMODE(there.st_mode) | 0o700)
            try:
                for name in os.listdir(source):
                    _move(os.path.join(source, name), os.path.join(target, name))
            finally:
                os.chmod(target, stat.S_IMODE(there.st_mode))
            return
    os.replace(source, target)
