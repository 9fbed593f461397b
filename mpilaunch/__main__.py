"""The command: `mpilaunch`, and `python -m mpilaunch`. What must be done before anything else is loaded is done here."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal itself loads enum
import gc
import os

from mpilaunch.head import bytecode
from mpilaunch.head.lazily import put_off_what_everyone_imports


def entry() -> None:
    """Run the command; does not return."""
    open_standard_descriptors()
    interrupt = _signal.getsignal(_signal.SIGINT)
    if interrupt is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # until somebody can say in words that it came
    if _signal.getsignal(_signal.SIGCHLD) == _signal.SIG_IGN:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # or nobody could tell how our children have ended
    gc.disable()  # loading makes hardly any garbage; the launch goes on with it
    put_off_what_everyone_imports()
    bytecode.use()
    from mpilaunch import cli

    if interrupt is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, interrupt)
    cli.entry()


def open_standard_descriptors() -> None:
    """See to it that 0, 1 and 2 are open: whoever closed them would get a socket or a file of ours in their place."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one


if __name__ == "__main__":
    entry()
