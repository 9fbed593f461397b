"""The command: `mpilaunch`, and `python -m mpilaunch`. What must be done before anything else is loaded is done here."""

from __future__ import annotations

from mpilaunch.head.lazily import put_off_what_everyone_imports


def entry() -> None:
    """Run the command; does not return."""
    put_off_what_everyone_imports()
    from mpilaunch import cli

    cli.entry()


if __name__ == "__main__":
    entry()
