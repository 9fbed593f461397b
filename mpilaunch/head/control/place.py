"""Where the heads of a user listen on this machine: a private directory with a socket for each running job.

It is in /tmp, since XDG_RUNTIME_DIR vanishes when its user logs out, which jobs may outlive; only where another user has taken
the name there, it is in XDG_RUNTIME_DIR. A socket is reached through a descriptor of the directory, so the length of its path
does not matter, and nothing can be exchanged on the way. Its name has the id of the job and the process of the head: a head
that was killed leaves its socket behind, and the next one that ends, or whoever finds that nobody listens there, removes it.
The last one removes the directory.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from mpilaunch.head import safe_files

NAME = re.compile(r"(new-)?([0-9a-f]{16})\.([1-9][0-9]{0,9})")
"""The name of a socket; one that does not listen yet begins with "new-"."""
BACKLOG = 16
MOST_JOBS = 4096
"""Sockets of one directory that are looked at."""
TRIES = 5
"""How often a directory is made that another head, as the last one to end, removes in the same moment."""


class Entry(NamedTuple):
    """The socket of a head: the directory, its name, the id of its job, and the process of the head."""

    folder: str
    name: str
    run_id: str
    pid: int


def folders() -> list[str]:
    """Return the candidates for the directory, in order."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    in_runtime = [os.path.join(runtime, "mpilaunch-jobs")] if os.path.isabs(runtime) else []
    return [f"/tmp/mpilaunch-{os.geteuid()}", *in_runtime]


def listen(run_id: str) -> tuple[socket.socket, Entry]:
    """Return a new socket that listens, and where; raises OSError."""
    refused = OSError("there is no place for it")
    pid = os.getpid()
    name = f"{run_id}.{pid}"
    for folder in [folder for folder in folders() for _ in range(TRIES)]:
        try:
            with safe_files.private_directory(folder, make=True) as directory:
                return _listen(directory, name), Entry(folder, name, run_id, pid)
        except OSError as error:
            refused = error
    raise refused


def _listen(directory: int, name: str) -> socket.socket:
    # It gets its name when it listens: until then, others would take it for that of a dead head.
    unnamed = f"new-{name}"
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(_address(directory, unnamed))
        listening.listen(BACKLOG)
        os.rename(unnamed, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        listening.close()
        raise
    return listening


def entries() -> list[Entry]:
    """Return the sockets of this user's heads; some may be left by heads that were killed."""
    found = []
    for folder in folders():
        with suppress(OSError), safe_files.private_directory(folder) as directory:
            found += [entry for entry in _entries(folder, directory) if not entry.name.startswith("new-")]
    return found


def _entries(folder: str, directory: int) -> list[Entry]:
    matches = [match for match in map(NAME.fullmatch, sorted(os.listdir(directory))) if match]
    return [Entry(folder, match[0], match[2], int(match[3])) for match in matches[:MOST_JOBS]]


@contextmanager
def address(entry: Entry) -> Iterator[str]:
    """Yield the address of a head's socket, to connect to; raises OSError."""
    with safe_files.private_directory(entry.folder) as directory:
        yield _address(directory, entry.name)


def remove(entry: Entry) -> None:
    """Remove the socket of a head that has ended, those that killed heads have left, and the directory with the last one."""
    with suppress(OSError), safe_files.private_directory(entry.folder) as directory:
        for other in _entries(entry.folder, directory):
            # A process in another container may have no entry here: only a connection that is refused tells.
            if other.name == entry.name or not (os.path.exists(f"/proc/{other.pid}") or _listens(directory, other.name)):
                with suppress(OSError):
                    os.unlink(other.name, dir_fd=directory)
    with suppress(OSError):  # there are others
        os.rmdir(entry.folder)


def _listens(directory: int, name: str) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(_address(directory, name))
        except ConnectionRefusedError:
            return False
        except OSError:
            pass  # its queue is full
    return True


def _address(directory: int, name: str) -> str:
    return f"/proc/self/fd/{directory}/{name}"
