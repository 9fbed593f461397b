"""The process of `run`: mpilaunch, which gets SIGTERM when its parent is gone; its first argument is the id of the parent."""

from __future__ import annotations

import os
import signal
import sys

from mpilaunch.__main__ import entry

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when the thread that started it has ended."""


def main() -> None:
    parent = int(sys.argv.pop(1))
    sys.argv[0] = "mpilaunch"
    try:
        import ctypes  # some builds of Python do not have it

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)  # it was gone before the call
    entry()


if __name__ == "__main__":
    main()
