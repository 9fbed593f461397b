"""From the boot line to the loop: take the wire, set the guard behind us, run.

Nothing of the daemon may ever write on stdin or stdout by accident: both become private descriptors first.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import sys
from typing import Any

from mpilaunch.daemon import guard
from mpilaunch.daemon.loop import Daemon
from mpilaunch.daemon.node.probe import probe_hardware
from mpilaunch.daemon.private_directory import PrivateDirectory
from mpilaunch.daemon.ranks import spawn
from mpilaunch.wire.frames import GO, KEEP, MARKER, STANDBY

STANDBY_SILENCE = 120.0
"""Seconds without a byte in which a daemon that stands by takes its keeper for lost, which sends one now and then."""
LONGEST_PULSE = 4 * STANDBY_SILENCE
"""Seconds in which such a daemon shows its guard that it moves."""
NOT_CALLED = 3
"""Exit code of a daemon that stood by, and that nobody will call any more."""


def main() -> None:
    """Run the daemon of this node; called by the boot line with the wire on stdin and stdout. Does not return."""
    wire = wire_in, wire_out = _take_wire()
    signal.alarm(0)  # of the boot line
    # Whoever has started us may have ignored or blocked them, and then nobody would hear of the end of a child, or of the job.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD, signal.SIGTERM])
    stands_by = sys.argv[2:] == [STANDBY]
    if stands_by:
        # What most jobs will need, and a daemon that does not stand by loads while the head is busy.
        import mpilaunch.daemon.attach
        import mpilaunch.daemon.pmix.search  # noqa: F401
    gc.freeze()  # before a fork, as `gc` advises: memory stays shared between the daemon and its guard
    while True:
        directory = PrivateDirectory()
        guarded = guard.stand_behind(wire, directory, again=stands_by)
        if isinstance(guarded, tuple):
            break
        if guarded or not stands_by:
            sys.exit(0 if guarded == NOT_CALLED else guarded)
    spawn.raise_file_limit()
    hardware = _stand_by(wire_in, wire_out, *guarded) if stands_by else None
    released = Daemon(wire_in, wire_out, *guarded, directory).run(hardware)
    directory.remove()
    # This process is a forked child: it must not run what the guard has registered for its exit. A daemon that lost its head
    # leaves a wire on which nobody knows what is said next.
    os._exit(1 if stands_by and not released else 0)


def _stand_by(wire_in: int, wire_out: int, alive: int, pulse: guard.Pulse) -> dict[str, Any]:
    """Say that we are there, and wait for the first byte: there is a job then. Nothing is done for it, or known of it, before.

    Our guard will fork the next daemon when we have ended: each is for one job.

    Returns:
        what `probe_hardware` does.
    """
    pulse.beat(LONGEST_PULSE)
    hardware = probe_hardware()
    called = KEEP
    os.set_blocking(wire_out, True)
    try:
        os.write(wire_out, MARKER)
        while called == KEEP:
            ready, _, _ = select.select([wire_in, alive], [], [], STANDBY_SILENCE)
            called = os.read(wire_in, 1) if ready == [wire_in] else b""
            pulse.beat(LONGEST_PULSE)
    except OSError:
        called = b""  # the wire has gone with the last job
    if called != GO:
        os._exit(NOT_CALLED)  # as at the end of `main`
    pulse.beat(guard.START_LIMIT)
    return hardware


def _take_wire() -> tuple[int, int]:
    """Move stdin and stdout out of reach of prints and ranks; afterwards they are /dev/null and a copy of stderr."""
    # Ranks get 0, 1 and 2; everything of ours stands above and is closed in every child.
    wire_in = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 10)
    wire_out = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 10)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return wire_in, wire_out
