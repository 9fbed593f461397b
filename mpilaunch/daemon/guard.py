"""The guard: the process that the agent started, waiting behind the daemon so that a dead or frozen one leaves no rank.

Ranks cannot be tied to the daemon by the kernel alone (a parent-death signal is lost at the first fork of a rank), so the
guard is a subreaper: when the daemon dies, all that it had started becomes the guard's, and the guard kills it. When the
guard dies first, the daemon sees end of file on a pipe and ends its ranks itself. The guard holds neither the wire nor a
rank's output: a dead daemon is seen by the head at once. Where daemons stand by, it keeps the wire for the next one, and ends
with a daemon that has failed.

A daemon that was stopped (SIGSTOP) or is stuck in the kernel shows no pulse, and is killed with all that it had started. Only
time that the guard has itself lived through counts as silence: a machine that was suspended, or a node that was frozen as a
whole, goes on where it was.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from typing import TYPE_CHECKING

from mpilaunch.daemon.ranks import reaper

if TYPE_CHECKING:
    from mpilaunch.daemon.private_directory import PrivateDirectory

BEATS = 6
"""A daemon shows its pulse so many times within its limit, and its guard looks as often."""
START_LIMIT = 600.0
"""Seconds without a pulse before the first one, which says how long the limit is."""
LONGEST_STEP = 3600.0
IGNORED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGTSTP, signal.SIGXCPU
)  # fmt: skip
"""Signals that neither guard nor daemon heeds, nor SIGTERM, which the daemon takes as an event: a batch system, or an agent
whose connection is lost, may send any of them to every process. Ranks have them as their program expects (`spawn`)."""
_LIMIT = struct.Struct("d")


class Pulse:
    """The daemon's side: a sign of life now and then, independent of how much happens."""

    def __init__(self, guard: socket.socket) -> None:
        self._guard = guard
        guard.setblocking(False)

    def beat(self, limit: float) -> float:
        """Show that the daemon lives, and will again within `limit` seconds; return after how many seconds to call again."""
        try:
            self._guard.send(_LIMIT.pack(limit))
        except OSError:
            pass  # the guard is stopped, or gone, which another pipe tells
        return limit / BEATS


def stand_behind(wire: tuple[int, int], directory: PrivateDirectory, again: bool = False) -> tuple[int, Pulse] | int:
    """Fork: the daemon goes on in the child, this process becomes its guard until it has ended.

    Args:
        wire: the descriptors of the wire, which only the daemon keeps.
        directory: the daemon's to make and to remove; removed here if the daemon died before it could.
        again: another daemon will follow this one, and have the same wire.

    Returns:
        in the child, a descriptor that reads end of file when the guard has died, and the pulse to show; in the guard, once
        nothing is left of the daemon, its exit code (128 + N for signal N).
    """
    alive_read, alive_write = os.pipe()
    # One message is one pulse, whatever else is sent.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for number in (*IGNORED, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    daemon = os.fork()
    if daemon == 0:
        os.close(alive_write)
        ours.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # An agent that kills its process group must not take the guard and the daemon in one blow.
        os.setsid()
        return alive_read, Pulse(theirs)
    theirs.close()
    for descriptor in (alive_read, *(() if again else wire)):
        os.close(descriptor)
    reaper.become_subreaper()
    code = _watch(daemon, ours)
    directory.remove_abandoned()
    directory.sweep()
    directory.close()
    os.close(alive_write)
    ours.close()
    return code


def _watch(daemon: int, pulse: socket.socket) -> int:
    """Wait for the end of the daemon, kill what it left, return its exit code."""
    silent = _until_it_ends(pulse)
    if silent:
        reaper.kill_descendants()
        words = "mpilaunch: the daemon did not move for %.0f s, and was killed with its ranks: was it stopped?\n" % silent
        try:
            os.write(2, words.encode())
        except OSError:
            pass  # the head has given this node up long ago
        return 128 + signal.SIGKILL
    _, status = os.waitpid(daemon, 0)
    reaper.kill_descendants()
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _until_it_ends(pulse: socket.socket) -> float:
    """Wait until the daemon has died, or been silent for too long: return the seconds of silence, 0 when it died."""
    limit, silent = START_LIMIT, 0.0
    while silent < limit:
        step = min(limit / BEATS, LONGEST_STEP)
        began = time.monotonic()
        ready, _, _ = select.select([pulse], [], [], step)
        if ready:
            try:
                beat = pulse.recv(_LIMIT.size)
            except ConnectionResetError:
                return 0.0
            if not beat:
                return 0.0
            (limit,), silent = _LIMIT.unpack(beat), 0.0
            continue
        waited = time.monotonic() - began
        # Far too long, and it was us who slept.
        silent = silent + waited if waited < 2 * step else 0.0
    return silent
