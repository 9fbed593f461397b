"""Puts the files of a tar archive on stdin into their places on a host, as scp and pdcp do: by name, or into a directory.

    receiver TARGET MEMBER PRESERVE

`remote.copy` sends this text, which runs on Python 3.8 with the standard library. With MEMBER, the only member of the archive,
and no directory TARGET, this is the member's new name. An existing file is written over: it keeps its owner, mode and links,
hosts may share it, and it may be a device. Existing directories stay as they are. With PRESERVE all have the modes and times of
the archive, else new ones have the modes that the umask leaves.
"""

import os
import shutil
import socket
import sys
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def main(target: str, member: str, preserve: str) -> None:
    """Receive an archive to its end; exits with a message for what cannot be written."""
    target = os.path.expanduser(target)
    renamed = bool(member) and not os.path.isdir(target)
    if not (member or os.path.isdir(target)):
        sys.exit(f"{target}: not a directory")
    later = []
    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            for entry in archive:
                path = target + entry.name[len(member) :] if renamed else os.path.join(target, entry.name)
                if entry.isdir():
                    later.append((entry, path, _make_directory(path)))
                elif entry.isreg():
                    _write(archive, entry, path, preserve=bool(preserve))
                else:
                    link = entry.linkname
                    if entry.islnk():
                        link = target + link[len(member) :] if renamed else os.path.join(target, link)
                    _replace(os.link if entry.islnk() else os.symlink, link, path)
        for entry, path, is_new in reversed(later):  # a directory without w takes no members, and each changes its time
            if preserve:
                _set(entry, path)
            elif is_new:
                os.chmod(path, entry.mode & ~_umask() & 0o777)
    except tarfile.TarError as error:
        sys.exit(f"{target}: the files have not come whole: {error}")
    except OSError as error:
        sys.exit(f"{error.filename or target}: {error.strerror or error}")


def _make_directory(path: str) -> bool:
    """Make a directory to which its owner may write, unless there is one; return whether it is new."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return False
    return True


def _write(archive: tarfile.TarFile, entry: tarfile.TarInfo, path: str, *, preserve: bool) -> None:
    source = archive.extractfile(entry)
    assert source is not None
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, entry.mode & 0o777), "wb") as file:
            shutil.copyfileobj(source, file, 1 << 18)
    except OSError as error:
        error.filename = path
        raise
    if preserve:
        _set(entry, path)


def _set(entry: tarfile.TarInfo, path: str) -> None:
    os.chmod(path, entry.mode & 0o7777)
    os.utime(path, (entry.mtime, entry.mtime))


def _replace(make: "Callable[[str, str], None]", link: str, path: str) -> None:
    """Make a link, in the place of a file or a link of this name at once."""
    new = f"{path}.{socket.gethostname()}.{os.getpid()}"
    try:
        make(link, new)
        os.replace(new, path)
    except OSError as error:
        if os.path.lexists(new):
            os.unlink(new)
        error.filename = path
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


if __name__ == "__main__":
    main(*sys.argv[1:])
