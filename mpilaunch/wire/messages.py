"""The control messages to a daemon (docs/wire.md), one row each: the states in which it is accepted, and its schema.

No I/O, and no message is acted on here: each receiver has a table of its handlers. A message that does not match its schema
never reaches one. Additional members and unknown types are allowed, because the other side may be newer. The messages of a
daemon to the head are in `head.nodes.messages`.
"""

from __future__ import annotations

from mpilaunch.wire.frames import WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Check = Callable[[Any], bool]
    Table = dict[str, tuple[str, Check]]

LONGEST_TIME = 1e15
"""Largest valid time in seconds."""


def of(*types: type) -> Check:
    """A value of one of these types."""
    return lambda value: type(value) in types


text, flag = of(str), of(bool)


def between(least: int, most: int) -> Check:
    """A whole number."""
    return lambda value: type(value) is int and least <= value <= most


whole = between(0, (1 << 63) - 1)
"""A count of bytes, processes or ranks."""
code = between(-(1 << 31), (1 << 31) - 1)
"""An exit code; MPI_Abort may choose any int of C."""
place = between(-1, (1 << 31) - 1)
"""A rank of a world, or -1 for all of them."""
number = between(1, 4095)
"""An errno."""
signal = between(1, 64)
"""A signal number of Linux."""


def seconds(value: Any) -> bool:
    """A time or a duration."""
    return type(value) in (int, float) and 0 <= value <= LONGEST_TIME


def maybe(check: Check) -> Check:
    """A value that passes the check, or null."""
    return lambda value: value is None or check(value)


def listed(check: Check) -> Check:
    """A list of such values."""
    return lambda value: type(value) is list and all(map(check, value))


def row(*checks: Check) -> Check:
    """A list with one value for each check."""
    return lambda value: type(value) is list and len(value) == len(checks) and all(c(v) for c, v in zip(checks, value))


def named(check: Check) -> Check:
    """An object with any names and such values."""
    return lambda value: type(value) is dict and all(map(check, value.values()))


def having(**checks: Check) -> Check:
    """An object with these members, and perhaps others."""
    return lambda value: type(value) is dict and all(name in value and check(value[name]) for name, check in checks.items())


def perhaps(**checks: Check) -> Check:
    """An object whose members of these names, where there are any, pass the checks."""
    return lambda value: type(value) is dict and all(check(value[name]) for name, check in checks.items() if name in value)


def both(first: Check, second: Check) -> Check:
    """A value that both checks accept."""
    return lambda value: first(value) and second(value)


def exactly(**checks: Check) -> Check:
    """An object with these members only, besides `type`."""
    fits = having(**checks)
    return lambda value: fits(value) and value.keys() - {"type"} == checks.keys()


def anything(value: Any) -> bool:
    """Any value; the handler checks it."""
    return True


def without_nul(value: Any) -> bool:
    """A string that can be an argument, a path or a variable."""
    return type(value) is str and "\0" not in value


def secret(value: Any) -> bool:
    """At least 32 bytes as hexadecimal digits."""
    return type(value) is str and len(value) >= 64 and len(value) % 2 == 0 and not value.strip("0123456789abcdef")


_app = having(program=listed(without_nul), directory=without_nul, directory_required=flag, environment=named(without_nul))
_mpi = having(
    world=text, namespace=text, first=whole, size=whole, universe_size=whole, pmi_universe_size=whole, hosts=listed(text),
    blocks=listed(row(whole, whole, whole)), app_sizes=listed(whole), parent=text, pairs=named(text), offer=listed(text),
    library=maybe(without_nul), pmix_defaults=named(without_nul), descriptor=maybe(whole), port=flag, notice_after=seconds,
)  # fmt: skip
_members = listed(row(text, place))
_rank = having(
    rank=whole, app=whole, environment=named(without_nul), unset=listed(text), cpus=maybe(listed(whole)), stdin=flag,
    fields=maybe(named(of(str, int))),
)  # fmt: skip

HEAD_SENDS: Table = {
    "limits": ("fresh", having(silence=seconds, pulse=seconds)),
    "prepare": (
        "fresh prepared running finished",
        having(
            job=text, apps=listed(_app), python=listed(without_nul), environment=named(without_nul),
            defaults=named(without_nul), scrub=listed(text), stdout=text, merge_stderr=flag, window=whole, drain=seconds,
            silence=seconds, pulse=seconds, attach=maybe(having(secret=secret, seconds=seconds)), mpi=maybe(_mpi), node=whole,
            rendezvous=maybe(having(address=text, port=between(1, 65535), secret=secret)), ranks=listed(_rank), number=whole,
            sweep=flag, independent=flag,
        ),
    ),
    "launch": ("prepared running", having(numbers=listed(whole))),
    "await": ("running", having(rank=whole, port=between(1, 65_535))),
    "signal": ("running", both(having(signal=signal), perhaps(ranks=listed(whole)))),
    "observe": ("running", having()),
    "backtrace": ("running", having(ranks=listed(whole))),
    "stop": ("prepared running", having(steps=listed(row(signal, seconds)))),
    "cancel": ("prepared running", having(number=whole)),
    "release": ("fresh prepared running finished", having()),
    "world": ("fresh prepared running finished", having(mpi=_mpi)),
    "collective": ("running", having(kind=text, members=_members, number=whole, parts=listed(anything))),
    "ask": ("running finished", having(id=whole, request=text, world=text, rank=place)),
    "answer": ("prepared running", having(id=whole, error=text)),
}  # fmt: skip
"""The messages to a daemon, by the state of its ranks. A message in another state is ignored: it may have crossed with an event
on the node. A further world is prepared and launched beside running ones, or on a node whose ranks have all ended."""


def check(message: dict[str, Any], table: Table) -> None:
    """Check a message against its schema; raises WireError."""
    row = table.get(message["type"])
    if row is not None and not row[1](message):
        raise WireError("%r does not fit" % message["type"])


def accepts(state: str, message: dict[str, Any], table: Table, strict: bool = False) -> bool:
    """Check a message; return whether its handler is to be called; raises WireError.

    Args:
        state: of the node's ranks: the daemon passes its own, the head that of the node that sent the message.
        strict: raise WireError for a known message that is not accepted in this state.
    """
    check(message, table)
    kind = message["type"]
    if kind not in table:
        return False
    accepted = state in table[kind][0].split()
    if strict and not accepted:
        raise WireError("%r of a node that is %s" % (kind, state))
    return accepted
