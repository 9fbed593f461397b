"""Control messages, held to docs/wire.md: what is no message of the protocol never reaches those who act on it.

No I/O. A table says for each type which members it has and what they may be; members that are not named pass, and so do types
that are not, for the other side may be newer. It runs on Python 3.8 and imports only the error that it raises.
"""

from __future__ import annotations

from mpilaunch.wire.frames import WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Names for the type checker only: loading typing would cost every node milliseconds.
    from collections.abc import Callable
    from typing import Any

    Check = Callable[[Any], bool]

LONGEST_TIME = 1e15
"""Seconds; more, or no number at all, is no deadline and no clock."""


def text(value: Any) -> bool:
    """A string."""
    return type(value) is str


def flag(value: Any) -> bool:
    """True or false."""
    return type(value) is bool


def whole(value: Any) -> bool:
    """A number of bytes, processes or ranks."""
    return type(value) is int and 0 <= value < 1 << 63


def code(value: Any) -> bool:
    """An exit code, which MPI_Abort may choose."""
    return type(value) is int and -(1 << 31) <= value < 1 << 31


def place(value: Any) -> bool:
    """A rank of a world, or -1 for all of them."""
    return type(value) is int and -1 <= value < 1 << 31


def number(value: Any) -> bool:
    """The number of a signal or of an error of the system."""
    return type(value) is int and 0 < value < 4096


def seconds(value: Any) -> bool:
    """A time or a duration."""
    return type(value) in (int, float) and 0 <= value <= LONGEST_TIME


def maybe(check: Check) -> Check:
    """This or null."""
    return lambda value: value is None or check(value)


def listed(check: Check) -> Check:
    """A list of these."""
    return lambda value: type(value) is list and all(map(check, value))


def row(*checks: Check) -> Check:
    """A list of exactly these."""
    return lambda value: type(value) is list and len(value) == len(checks) and all(c(v) for c, v in zip(checks, value))


def named(check: Check) -> Check:
    """An object of any names, with such values."""
    return lambda value: type(value) is dict and all(map(check, value.values()))


def having(**checks: Check) -> Check:
    """An object with these members, and perhaps others that another module looks at."""
    return lambda value: type(value) is dict and all(name in value and check(value[name]) for name, check in checks.items())


def anything(value: Any) -> bool:
    """What others make of it is their affair."""
    return True


def without_nul(value: Any) -> bool:
    """A string that may become an argument, a path or a variable."""
    return type(value) is str and "\0" not in value


def secret(value: Any) -> bool:
    """32 bytes or more, as hexadecimal digits."""
    return type(value) is str and len(value) >= 64 and len(value) % 2 == 0 and not value.strip("0123456789abcdef")


_app = having(program=listed(without_nul), directory=without_nul, directory_required=flag, environment=named(without_nul))
_mpi = having(
    world=text, namespace=text, first=whole, size=whole, universe_size=whole, hosts=listed(text),
    blocks=listed(row(whole, whole, whole)), app_sizes=listed(whole), parent=text, pairs=named(text), offer=listed(text),
    library=maybe(without_nul), pmix_defaults=named(without_nul), descriptor=maybe(whole), port=flag, tell_after=seconds,
)  # fmt: skip
_members = listed(row(text, place))
_rank = having(
    rank=whole, app=whole, environment=named(without_nul), unset=listed(text), cpus=maybe(listed(whole)), stdin=flag
)

HEAD_SAYS = {
    "limits": having(silence=seconds, pulse=seconds),
    "prepare": having(
        job=text, apps=listed(_app), python=listed(without_nul), environment=named(without_nul), defaults=named(without_nul),
        scrub=listed(text), merge_stderr=flag, window=whole, drain=seconds, silence=seconds, pulse=seconds,
        attach=maybe(having(secret=secret, seconds=seconds)), mpi=maybe(_mpi), node=whole,
        ranks=listed(_rank),
    ),
    "launch": having(),
    "signal": having(signal=number),
    "stop": having(steps=listed(row(number, seconds))),
    "cancel": having(),
    "release": having(),
    "world": having(mpi=_mpi),
    "collective": having(kind=text, members=_members, number=whole, parts=listed(anything)),
    "ask": having(id=whole, what=text, world=text, rank=place),
    "answer": having(id=whole, error=text),
}  # fmt: skip
DAEMON_SAYS = {
    "hello": having(version=text, clock=seconds, facts=having()),
    "listening": having(path=without_nul, why_not=text),
    "terminated": having(),
    "ready": having(programs=listed(text), notes=listed(text)),
    "refused": having(problems=listed(having(cause=text, detail=text))),
    "started": having(ranks=listed(row(whole, whole, seconds)), failed=listed(row(whole, number, seconds))),
    "exited": having(
        rank=whole, code=maybe(code), signal=maybe(number), core=flag, clock=seconds, stopped=flag, stdin_read=whole, mpi=text,
        evidence=having(),
    ),
    "collective": having(kind=text, members=_members, ranks=whole, data=anything),
    "ask": having(id=whole, what=text),
    "answer": having(id=whole, error=text),
    "joined": having(world=text),
    "waiting": having(world=text, absent=listed(whole)),
    "singleton": having(rank=whole, library=text, family=text, offer=listed(text), why_no_pmix=text),
    "broken": having(text=text),
    "note": having(text=text),
    "finished": having(worlds=whole, swept=listed(row(whole, text))),
}  # fmt: skip


def check(message: dict[str, Any], says: dict[str, Check]) -> None:
    """Hold a message to the table of its sender; raises WireError."""
    fits = says.get(message["type"])
    if fits is not None and not fits(message):
        raise WireError("%r does not fit" % message["type"])
