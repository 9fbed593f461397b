"""Writes files and directories of a host to stdout as a tar archive, each under the last part of its path.

    sender RECURSIVE UMASK PATH...

`remote.fetch` sends this text, which runs on Python 3.8 with the standard library. A link that is named counts as what it leads
to, others stay links; what is neither a file, a directory nor a link is left out. With UMASK, an octal number, the files lose
these bits of their modes, and their times; without it they keep both. What cannot be read is reported, and the others are sent.
Another user may change what is read meanwhile, so no link is followed below PATH, and no FIFO waited for.
"""

import os
import signal
import stat
import sys
import tarfile
import time
from typing import IO

OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
DEEPEST = 90
"""Directories in each other that are sent."""
BROKEN = b"B"
"""Type of an entry after a file that is not whole: mpilaunch then does not take it."""


class Whole:
    """A file that is as long as it was at first: what cannot be read any more is zeros, so that the archive stays one."""

    def __init__(self, file: "IO[bytes]") -> None:
        self._file = file
        self.fault = ""

    def read(self, size: int) -> bytes:
        data = b""
        try:
            data = b"" if self.fault else self._file.read(size)
        except OSError as error:
            self.fault = error.strerror or str(error)
        if len(data) < size:
            self.fault = self.fault or "became shorter while it was read"
        return data + bytes(size - len(data))


class Sender:
    """Adds files to an archive; `failed` when one of them could not be read."""

    def __init__(self, archive: tarfile.TarFile, umask: str) -> None:
        self._archive, self._umask = archive, umask
        self.failed = False

    def send(self, path: str, recursive: bool) -> None:
        """Add a file, or a directory and all that it contains."""
        given = os.path.abspath(os.path.expanduser(path))
        place, name = os.path.realpath(given), os.path.basename(given)
        try:
            mode = os.stat(place).st_mode
            if stat.S_ISDIR(mode) and not recursive:
                self._report(path, "is a directory, which needs -r")
            elif stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                self._send(None, place, name, path)
            else:
                self._report(path, "is neither a file nor a directory")
        except OSError as error:
            self._report(path, error.strerror)

    def _send(self, folder: "int | None", member: str, name: str, shown: str) -> None:
        """Add a file, a link, or a directory and all that it contains: `member` of an open directory."""
        found = os.stat(member, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            self._add(name, found, tarfile.SYMTYPE, os.readlink(member, dir_fd=folder))
        elif stat.S_ISDIR(found.st_mode):
            if name.count("/") >= DEEPEST:
                self._report(shown, "is in too many directories")
                return
            descriptor = os.open(member, OPEN | os.O_DIRECTORY, dir_fd=folder)
            try:
                self._add(name, os.fstat(descriptor), tarfile.DIRTYPE)
                for inner in sorted(os.listdir(descriptor)):
                    path = shown + "/" + inner
                    try:
                        self._send(descriptor, inner, name + "/" + inner, path)
                    except OSError as error:
                        self._report(path, error.strerror)
            finally:
                os.close(descriptor)
        elif stat.S_ISREG(found.st_mode):
            with open(os.open(member, OPEN, dir_fd=folder), "rb") as file:
                found = os.fstat(file.fileno())
                if stat.S_ISREG(found.st_mode):
                    whole = Whole(file)
                    self._add(name, found, tarfile.REGTYPE, data=whole)
                    if whole.fault:
                        self._add(name, found, BROKEN)
                        self._report(shown, whole.fault)

    def _add(self, name: str, found: os.stat_result, kind: bytes, link: str = "", data: "Whole | None" = None) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, link
        entry.mode, entry.mtime = stat.S_IMODE(found.st_mode), int(found.st_mtime)
        entry.size = found.st_size if data else 0
        if self._umask:
            entry.mode &= ~int(self._umask, 8)
            entry.mtime = int(time.time())
        self._archive.addfile(entry, data)  # type: ignore[arg-type]  # it needs no more than `read`

    def _report(self, path: str, reason: "str | None") -> None:
        self.failed = True
        sys.stderr.write(f"{path}: {reason}\n")


def main(recursive: str, umask: str, *paths: str) -> None:
    """Send all; exits with 1 when something could not be read."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # without a reader nothing is left to do
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        sender = Sender(archive, umask)
        for path in paths:
            sender.send(path, bool(recursive))
    sys.stdout.flush()
    sys.exit(1 if sender.failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
