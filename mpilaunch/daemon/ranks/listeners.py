"""Finds out whether a rank listens on a TCP port, by /proc alone.

The socket must be open in the rank or a process that descends from it, so that a stranger's server on the same port is not
taken for the rank's. Nothing connects: a server never sees the check.
"""

from __future__ import annotations

import os

from mpilaunch.daemon.ranks import reaper

PAUSE = 0.2
"""Seconds between two looks."""
LISTEN = b"0A"
"""The kernel's number of this state (TCP_LISTEN in include/net/tcp_states.h)."""


def listens(pid: int, port: int) -> bool:
    """Return whether a process, or one that descends from it, listens on a TCP port."""
    sockets = _listening(pid, port)
    return bool(sockets) and any(not sockets.isdisjoint(_open_files(one)) for one in [pid, *reaper.descendants(pid)])


def _listening(pid: int, port: int) -> set[str]:
    """Return the listening sockets on a port in the network namespace of a process, named as in /proc/PID/fd."""
    found = set()
    for name in ("net/tcp", "net/tcp6"):
        for line in reaper.process_file(pid, name).splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and int(fields[1].rpartition(b":")[2], 16) == port:
                found.add("socket:[%s]" % fields[9].decode("ascii"))
    return found


def _open_files(pid: int) -> list[str]:
    """Return what the descriptors of a process refer to, nothing if it has gone or belongs to another user."""
    folder = "/proc/%d/fd" % pid
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    links = []
    for name in names:
        try:
            links.append(os.readlink(os.path.join(folder, name)))
        except OSError:
            pass  # closed meanwhile
    return links
