"""Files of this machine as a tar archive on the stdin of the ranks (`--stdin-archive`).

The archive is whole before anything starts: a file that cannot be read is an error of the command line. It has no name on the
disk. Links within a directory stay links; what is neither a file, a directory nor a link is left out.
"""

from __future__ import annotations

import errno
import os
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from mpilaunch.errors import UsageError, reason_of

OPTION = "--stdin-archive"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def take_as_stdin(paths: Sequence[str]) -> None:
    """Let this process read an archive of files and directories, each under the last part of its path; raises UsageError."""
    with _archive(paths) as file:
        os.dup2(file.fileno(), 0)


def _archive(paths: Sequence[str]) -> IO[bytes]:
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the caller
    except OSError as error:
        raise _no_room(error) from error
    try:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path in paths:
                _add(archive, path)
        file.seek(0)
    except BaseException as error:
        with suppress(OSError):  # what could not be written is still in its buffer
            file.close()
        if isinstance(error, OSError):
            raise _no_room(error) from error
        raise
    return file


def _add(archive: tarfile.TarFile, path: str) -> None:
    """Add a file or a directory that the user named, a link as what it leads to; raises UsageError."""
    place = os.path.realpath(path)
    try:
        if not (os.path.isfile(place) or os.path.isdir(place)):
            os.stat(place)
            raise UsageError("stdin-archive", f"{OPTION}: {path} is neither a file nor a directory", hint="name files")
        archive.add(place, name_of(path), filter=_member)
    except OSError as error:
        if error.errno in _FULL:
            raise  # the archive's own file
        if error.errno is None:  # tarfile's own
            message = f"{OPTION}: {path}: a file has become shorter while it was read"
            raise UsageError("stdin-archive", message, hint="try again when nothing writes there") from error
        within = isinstance(error.filename, str) and error.filename.startswith(f"{place}/")
        at = error.filename if within else path
        raise UsageError("stdin-archive", f"{OPTION}: {at}: {reason_of(error)}", hint="name files that you may read") from error


def name_of(path: str) -> str:
    """Return the name of a file or a directory in the archive; raises UsageError for the root."""
    name = os.path.basename(os.path.abspath(path))
    if not name:
        raise UsageError("stdin-archive", f"{OPTION}: {path} has no name", hint="name a directory in it")
    return name


def _member(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return a member as it goes into the archive: without its owner, who may be unknown on a node; None leaves it out."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member if member.isreg() or member.isdir() or member.issym() or member.islnk() else None


def _no_room(error: OSError) -> UsageError:
    hint = f"make room in {tempfile.gettempdir()}, or set TMPDIR"
    return UsageError("stdin-archive", f"{OPTION}: the archive cannot be kept: {reason_of(error)}", hint=hint)
