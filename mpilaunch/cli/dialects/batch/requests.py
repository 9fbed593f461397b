"""Options that request an allocation: without effect inside one, an error outside, since mpilaunch requests none.

Pure; for every launcher of a batch system that both requests nodes and starts ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

from mpilaunch.cli.dialects.rows import InvalidArgument, Row, Translation, acts

_KEY = "asks"
_INSIDE = "nothing inside an allocation, which has it; outside an error"


def asks(names: str, metavar: str, reason: str = "") -> Row:
    """Return the row of options that request something of the allocation; `reason`: why they have no effect on ranks."""

    def keep(*values: str, flag: str) -> Translation:
        return Translation(parts={f"{_KEY} {flag}": reason})

    text = f"nothing inside an allocation: {reason}; outside an error" if reason else _INSIDE
    return acts(names, metavar, keep, text, flagged=True)


def check(parts: Mapping[str, str], inside: bool, how: str) -> Translation:
    """Return notes about such options; raises InvalidArgument outside an allocation; `how` says how to get one."""
    notes = []
    for key, reason in parts.items():
        kind, _, flag = key.partition(" ")
        if kind == _KEY and not inside:
            message = f"{flag} requests something of an allocation, and there is none"
            raise InvalidArgument(message, f"{how} with it first, and this command inside; or leave {flag} out")
        if kind == _KEY:
            notes.append((f"{flag} has no effect: {reason or 'the allocation has it'}", 0 if reason else 1))
    return Translation(notes=tuple(notes))
