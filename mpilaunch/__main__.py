"""`python -m mpilaunch` is `mpilaunch`."""

from __future__ import annotations

from mpilaunch.cli import entry

if __name__ == "__main__":
    entry()
