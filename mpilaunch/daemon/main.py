"""From the boot line to the loop: take the wire, set the guard behind us, run.

Nothing of the daemon may ever write on stdin or stdout by accident: both become private descriptors first.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import sys

from mpilaunch.daemon import guard, reaper, spawn
from mpilaunch.daemon.loop import Daemon
from mpilaunch.wire.frames import MARKER, STANDBY

LONGEST_STANDBY = 3600.0
"""Seconds that a daemon stands by: one whose wire has died without a word must not stay for ever. It is replaced."""


def main() -> None:
    """Run the daemon of this node; called by the boot line with the wire on stdin and stdout. Does not return."""
    wire = wire_in, wire_out = _take_wire()
    stands_by = sys.argv[2:] == [STANDBY]
    if stands_by:
        # What most jobs will need, and a daemon that does not stand by loads while the head is busy.
        import mpilaunch.daemon.attach
        import mpilaunch.daemon.pmix_search  # noqa: F401
    while True:
        if stands_by:
            _stand_by(wire_in, wire_out)
        directory = reaper.session_directory()
        guarded = guard.stand_behind(wire, directory, again=stands_by)
        if isinstance(guarded, tuple):
            break
        if guarded or not stands_by:
            os._exit(guarded)
    gc.freeze()  # what has been loaded stays
    gc.enable()
    os.write(wire_out, MARKER)
    spawn.raise_file_limit()
    released = Daemon(wire_in, wire_out, *guarded, directory).run()
    # One that lost its head leaves a wire on which nobody knows what is said next.
    os._exit(1 if stands_by and not released else 0)


def _stand_by(wire_in: int, wire_out: int) -> None:
    """Say that we are loaded, and wait for the first byte: there is a job then. Nothing else is done, or known, before.

    What waits here is the guard of the daemons to come, which are forked one after the other, each for one job.
    """
    os.set_blocking(wire_out, True)
    try:
        os.write(wire_out, MARKER)
        ready, _, _ = select.select([wire_in], [], [], LONGEST_STANDBY)
        called = bool(ready and os.read(wire_in, 1))
    except OSError:
        called = False  # the wire has gone with the last job
    if not called:
        os._exit(0)


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
