"""Where the heads of a user listen on this machine: a private directory with a socket for each running job, named by its id.

It is in /tmp, since XDG_RUNTIME_DIR vanishes when its user logs out, which jobs may outlive; only where another user has taken
the name there, it is in XDG_RUNTIME_DIR. A socket is reached through a descriptor of the directory, so the length of its path
does not matter, and nothing can be exchanged on the way. A head that was killed leaves its socket behind: who finds one that
nobody listens on removes it.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from mpilaunch.head import safe_files

NAME = re.compile("[0-9a-f]{16}")
"""The name of a socket: the id of a job."""
BACKLOG = 16
MOST_JOBS = 4096
"""Sockets of one directory that are looked at."""


class Entry(NamedTuple):
    """The socket of a head: the directory, and the id of its job."""

    folder: str
    run_id: str


def folders() -> list[str]:
    """Return the candidates for the directory, in order."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    in_runtime = [os.path.join(runtime, "mpilaunch-jobs")] if os.path.isabs(runtime) else []
    return [f"/tmp/mpilaunch-{os.geteuid()}", *in_runtime]


def listen(run_id: str) -> tuple[socket.socket, Entry]:
    """Return a new socket that listens, and where; raises OSError."""
    refused = OSError("there is no place for it")
    for folder in folders():
        try:
            with safe_files.private_directory(folder, make=True) as directory:
                return _listen(directory, run_id), Entry(folder, run_id)
        except OSError as error:
            refused = error
    raise refused


def _listen(directory: int, run_id: str) -> socket.socket:
    # It gets its name when it listens: until then, others would take it for that of a dead head.
    unnamed = f"new-{run_id}"
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(_address(directory, unnamed))
        listening.listen(BACKLOG)
        os.rename(unnamed, run_id, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        listening.close()
        raise
    return listening


def entries() -> list[Entry]:
    """Return the sockets of this user's heads; some may be left by heads that were killed."""
    found = []
    for folder in folders():
        with suppress(OSError), safe_files.private_directory(folder) as directory:
            names = sorted(name for name in os.listdir(directory) if NAME.fullmatch(name))
            found += [Entry(folder, name) for name in names[:MOST_JOBS]]
    return found


@contextmanager
def address(entry: Entry) -> Iterator[str]:
    """Yield the address of a head's socket, to connect to; raises OSError."""
    with safe_files.private_directory(entry.folder) as directory:
        yield _address(directory, entry.run_id)


def remove(entry: Entry) -> None:
    """Remove the socket of a head that has ended."""
    with suppress(OSError), safe_files.private_directory(entry.folder) as directory:
        os.unlink(entry.run_id, dir_fd=directory)


def _address(directory: int, name: str) -> str:
    return f"/proc/self/fd/{directory}/{name}"
