"""Start of the daemon: take over the wire, fork the daemon behind its guard, run the loop.

No code of the daemon may write to the wire by accident: stdin and stdout become private descriptors first.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import sys

from mpilaunch.daemon import guard
from mpilaunch.daemon.private_directory import PrivateDirectory
from mpilaunch.daemon.ranks import spawn
from mpilaunch.wire.frames import GO, KEEP, MARKER, STANDBY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STANDBY_SILENCE = 120.0
"""Seconds of silence after which a standby daemon gives up its keeper, which sends a byte now and then."""
LONGEST_PULSE = 4 * STANDBY_SILENCE
"""Pulse limit of a standby daemon, in seconds."""
NOT_CALLED = 3
"""Exit code of a standby daemon that was never used."""
FAULT = 70
"""Exit code of a daemon after a fault of our own, as mpilaunch's own."""


def main(hardware: dict[str, Any] | None = None) -> None:
    """Run the daemon of this node, with the wire on stdin and stdout, and a result of `probe_hardware`. Does not return."""
    gc.disable()  # until after the fork, as `gc` advises: memory stays shared between the daemon and its guard
    spawn.raise_file_limit()
    wire = wire_in, wire_out = _take_wire()
    signal.alarm(0)  # set by the boot line
    # The parent may have ignored or blocked these; the daemon needs them to see the end of a child or of the job.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD, signal.SIGTERM])
    standby = sys.argv[2:] == [STANDBY]
    if standby:
        load()
    gc.freeze()
    while True:
        directory = PrivateDirectory()
        guarded = guard.stand_behind(wire, directory, again=standby)
        if isinstance(guarded, tuple):
            break
        if guarded or not standby:
            os._exit(0 if guarded == NOT_CALLED else guarded)  # nothing is left to write, and Python's own end takes 4 ms
    from mpilaunch.daemon.loop import Daemon

    if standby:
        hardware = _stand_by(wire_in, wire_out, *guarded)
    gc.enable()
    daemon = Daemon(wire_in, wire_out, *guarded, directory)
    try:
        released = daemon.run(hardware)
    except Exception as error:
        try:
            daemon.report_fault(error)
        finally:
            os._exit(FAULT)  # the guard ends the ranks and removes the directory
    directory.remove()
    # A forked child must not run the exit handlers of the guard. The wire cannot be used again after a lost head.
    os._exit(1 if standby and not released else 0)


def load() -> None:
    """Load all modules, once for the daemons that follow. A single daemon loads them behind its guard, which needs few."""
    import mpilaunch.daemon.attach
    import mpilaunch.daemon.loop
    import mpilaunch.daemon.pmix.search  # noqa: F401

    try:
        import ctypes  # noqa: F401
    except ImportError:
        pass  # some builds of Python do not have it


def _stand_by(wire_in: int, wire_out: int, alive: int, pulse: guard.Pulse) -> dict[str, Any]:
    """Send the marker and wait for the byte that begins a job; return the result of `probe_hardware`."""
    from mpilaunch.daemon.node.probe import probe_hardware

    pulse.beat(LONGEST_PULSE)
    hardware = probe_hardware()
    command = KEEP
    os.set_blocking(wire_out, True)
    try:
        os.write(wire_out, MARKER)
        while command == KEEP:
            ready, _, _ = select.select([wire_in, alive], [], [], STANDBY_SILENCE)
            command = os.read(wire_in, 1) if ready == [wire_in] else b""
            pulse.beat(LONGEST_PULSE)
    except OSError:
        command = b""  # the wire ended with the last job
    if command != GO:
        os._exit(NOT_CALLED)  # as at the end of `main`
    pulse.beat(guard.START_LIMIT)
    return hardware


def _take_wire() -> tuple[int, int]:
    """Move the wire from stdin and stdout to private descriptors; replace them by /dev/null and a copy of stderr."""
    # Ranks get 0, 1 and 2; the daemon's descriptors are above and closed in every child.
    wire_in = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 10)
    wire_out = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 10)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return wire_in, wire_out
