"""`python -m mpilaunch` is `mpilaunch`."""

from __future__ import annotations

import sys

from mpilaunch.cli import main

if __name__ == "__main__":
    sys.exit(main())
