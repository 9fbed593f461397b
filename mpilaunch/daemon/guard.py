"""The guard: what the agent started, and the parent of the daemon. It kills all ranks when the daemon dies or freezes.

The kernel alone cannot tie ranks to the daemon (a parent-death signal is lost at the first fork of a rank), so the guard is a
subreaper: the descendants of a dead daemon become its own, and it kills them. A daemon without a pulse was stopped (SIGSTOP)
or is stuck in the kernel, and is killed with them; time in which the guard itself did not run is not counted, so a job
survives a suspended machine. A daemon of independent commands asks the guard to leave what they have started. When the guard
dies first, the daemon reads end of file on a pipe and ends its ranks. The guard holds neither the wire nor an output of a rank,
so that the head sees the death of a daemon at once; with standby daemons it keeps the wire for the next one, until one fails.
The loss of the head is the daemon's matter (`lifeline`, `loop`).
"""

from __future__ import annotations

import os
import select
import signal
import struct
import time

from mpilaunch.daemon.ranks import reaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mpilaunch.daemon.private_directory import PrivateDirectory

BEATS = 6
"""Pulses within one limit, and checks of the guard."""
START_LIMIT = 600.0
"""Limit in seconds before the first pulse, which sets another."""
LONGEST_STEP = 3600.0
IGNORED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGTSTP, signal.SIGXCPU
)  # fmt: skip
"""Signals that guard and daemon ignore: a batch system, or an agent that loses its connection, may send them to every process.
The guard ignores SIGTERM too; for the daemon it is an event. `spawn` resets all of them for ranks."""
_LIMIT = struct.Struct("d")
_LEAVE = -1.0
"""Sent in place of a limit: kill no descendant from now on."""


class Pulse:
    """The daemon's side: a sign of life at regular times, by a pipe to the guard."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        os.set_blocking(pipe, False)

    def beat(self, limit: float) -> float:
        """Show that the daemon lives and will again within `limit` seconds; return the seconds until the next call."""
        self._send(limit)
        return limit / BEATS

    def leave(self) -> None:
        """Ask the guard to kill no descendant: what independent commands leave running stays, as under ssh."""
        self._send(_LEAVE)

    def _send(self, number: float) -> None:
        try:
            os.write(self._pipe, _LIMIT.pack(number))
        except OSError:
            pass  # the guard is stopped, or dead, which another pipe shows


def ignore_signals() -> None:
    """Ignore what a batch system or an agent may send to every process."""
    for number in (*IGNORED, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def stand_behind(wire: tuple[int, int], directory: PrivateDirectory, again: bool = False) -> tuple[int, Pulse] | int:
    """Fork the daemon, and guard it until it has ended.

    Args:
        wire: the descriptors of the wire, which only the daemon keeps.
        directory: the daemon's; removed here if the daemon died before it could.
        again: another daemon with the same wire will follow.

    Returns:
        in the child, a descriptor that reads end of file when the guard has died, and the pulse; in the guard, after the
        end of the daemon and its descendants, the exit code of the daemon (128 + N for signal N).
    """
    reaper.become_subreaper()  # before the fork, so that both processes share what it loads
    alive_read, alive_write = os.pipe()
    pulse_read, pulse_write = os.pipe()
    ignore_signals()
    daemon = os.fork()
    if daemon == 0:
        os.close(alive_write)
        os.close(pulse_read)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # An agent that kills its process group must not kill guard and daemon at once.
        os.setsid()
        return alive_read, Pulse(pulse_write)
    for descriptor in (alive_read, pulse_write, *(() if again else wire)):
        os.close(descriptor)
    code = _watch(daemon, pulse_read)
    directory.remove_abandoned()
    directory.sweep()
    directory.close()
    os.close(alive_write)
    os.close(pulse_read)
    return code


def _watch(daemon: int, pulse: int) -> int:
    """Wait for the end of the daemon, kill its descendants unless it asked to leave them, return its exit code."""
    silent, leaves = _until_it_ends(pulse)
    if silent:
        if leaves:
            os.kill(daemon, signal.SIGKILL)
            os.waitpid(daemon, 0)
        else:
            _kill_descendants()
        what = "was killed, and its commands run on" if leaves else "was killed with its ranks"
        message = "mpilaunch: the daemon did not move for %.0f s, and %s: was it stopped?\n" % (silent, what)
        try:
            os.write(2, message.encode())
        except OSError:
            pass  # the head has given up this node long ago
        return 128 + signal.SIGKILL
    _, status = os.waitpid(daemon, 0)
    if not leaves:
        _kill_descendants()
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _kill_descendants() -> None:
    """Kill what the daemon has left, and remove its shared memory: no library is left that would."""
    left = reaper.descendants()
    if not left:
        reaper.kill_descendants()  # /proc may not show all
        return
    from mpilaunch.daemon.mpi import segments

    memory = segments.mapped_by(left)
    reaper.kill_descendants()
    segments.remove(memory)


def _until_it_ends(pulse: int) -> tuple[float, bool]:
    """Wait until the daemon has died or been silent for too long.

    Returns:
        the seconds of silence, 0 when it died, and whether it asked to leave its descendants.
    """
    limit, silent, leaves = START_LIMIT, 0.0, False
    while silent < limit:
        step = min(limit / BEATS, LONGEST_STEP)
        began = time.monotonic()
        if select.select([pulse], [], [], step)[0]:
            beat = os.read(pulse, _LIMIT.size)  # writes of this size are not split
            if not beat:
                return 0.0, leaves
            (number,), silent = _LIMIT.unpack(beat), 0.0
            if number == _LEAVE:
                leaves = True
                reaper.become_subreaper(False)
            else:
                limit = number
            continue
        waited = time.monotonic() - began
        # If the wait was far too long, this process did not run either.
        silent = silent + waited if waited < 2 * step else 0.0
    return silent, leaves
