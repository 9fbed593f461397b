"""The command: `mpilaunch`, and `python -m mpilaunch`. What must be done before anything else is loaded is done here.

Its own imports take no time: an interrupt during them ends Python with a traceback.
"""

from __future__ import annotations

import gc
import os
import signal
import sys


def entry() -> None:
    """Run the command, and exit with its code."""
    gc.set_threshold(100_000)  # what we load is no garbage: with the usual 700, Python searches it fifty times
    open_standard_descriptors()
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt while we load has no traceback
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide how our children end
    from mpilaunch.cli.main import main

    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    code = main()
    flush_standard_streams()
    gc.freeze()  # Python would look for garbage in all that was loaded before it exits: a seventh of a short launch
    sys.exit(code)


def open_standard_descriptors() -> None:
    """Open those of 0, 1 and 2 that are closed: a socket or file of ours would get their number otherwise."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one


def flush_standard_streams() -> None:
    """Flush what was printed; what cannot be written is dropped here, or Python would try again and change the exit code."""
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except AttributeError:
            pass  # closed before we started
        except (OSError, ValueError):
            from contextlib import suppress

            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


if __name__ == "__main__":
    entry()
