"""The control messages that the head accepts from daemons, one row each: states, schema with limits, handler.

The messages to a daemon are in `wire.messages`. No I/O, and no message is acted on here. A handler is a method of `NodeLink`
(`_take_hello`, `_take_listening`), of `Launch`, or, written `_mpi.NAME`, of a part of it like its `MpiServices`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpilaunch.wire import messages
from mpilaunch.wire.messages import between, flag, having, listed, maybe, named, of, place, row, seconds, text, whole

if TYPE_CHECKING:
    from mpilaunch.wire.messages import Check, Table

LONGEST_PATH = 4096
"""Characters in a host name, an address or a path among the facts of a node."""
short = between(0, 65_535)
"""The number of a CPU or a port."""


def path(value: Any) -> bool:
    """A host name, an address or a path."""
    return messages.without_nul(value) and len(value) <= LONGEST_PATH


def either(*checks: Check) -> Check:
    """A value that one of these checks accepts."""
    return lambda value: any(check(value) for check in checks)


def perhaps(**checks: Check) -> Check:
    """An object whose members of these names, where there are any, pass the checks."""
    return lambda value: type(value) is dict and all(check(value[name]) for name, check in checks.items() if name in value)


def both(first: Check, second: Check) -> Check:
    """A value that both checks accept."""
    return lambda value: first(value) and second(value)


def one_of(*values: str) -> Check:
    """One of these strings."""
    return lambda value: type(value) is str and value in values


unit = place
"""The number of a core, socket, NUMA node or GPU, -1 for none."""
scalar = of(str, int, float, bool)
_members = listed(row(text, place))
_facts = both(
    perhaps(caches=perhaps(**dict.fromkeys("123", either(one_of("core", "socket"), listed(path)))), notes=listed(text)),
    having(
        hostname=path, python=path, executable=path, cpus=listed(row(short, unit, unit, unit)), addresses=listed(path),
        free_port=short, ssh_connection=maybe(row(path, scalar, path, scalar)),
        gpus=listed(having(vendor=path, index=unit, uuid=path, bus_id=path, name=path, numa=unit)),
    ),
)  # fmt: skip
_evidence = perhaps(out_of_memory=text, memory_kills=whole, shm_free=whole, shm_size=whole)
_problem = having(
    cause=one_of(
        "program-missing", "program-not-executable", "interpreter-missing", "directory-missing", "pmix-missing", "file-limit",
        "rendezvous-failed"
    ),
    detail=text,
)  # fmt: skip

DAEMON_MESSAGES: Table = {
    "hello": ("contacted", having(version=text, clock=seconds, facts=_facts), "_take_hello"),
    "listening": ("preparing running", having(path=path, error=text), "_take_listening"),
    "terminated": ("preparing running finished", having(), "_terminated"),
    "ready": ("preparing running", having(programs=listed(text), notes=listed(text)), "_answered"),
    "refused": ("preparing running", having(problems=listed(_problem)), "_answered"),
    "started": (
        "running",
        having(ranks=listed(row(whole, whole, seconds)), failed=listed(row(whole, messages.number, seconds))),
        "_ranks_started",
    ),
    "exited": (
        "running",
        having(
            rank=whole, code=maybe(messages.code), signal=maybe(messages.signal), core=flag, clock=seconds, stopped=flag,
            stdin_read=whole, mpi=one_of("absent", "connected", "finalized", "aborted"), evidence=_evidence,
        ),
        "_rank_exited",
    ),
    "listens": ("running", having(rank=whole, port=short), "_order.take_listening"),
    "collective": (
        "running", having(kind=text, members=_members, ranks=whole, data=either(text, named(text))), "_mpi.collect"
    ),
    "ask": ("running finished", having(id=whole, request=text), "_mpi.ask"),
    "answer": ("preparing running finished", having(id=whole, error=text), "_mpi.take_modex"),
    "joined": ("running finished", having(world=text), "_mpi.join"),
    "waiting": ("running finished", having(world=text, absent=listed(whole)), "_mpi.take_absent"),
    "singleton": (
        "running finished", having(rank=whole, library=text, family=text, offer=listed(text), pmix_error=text),
        "_mpi.warn_of_singleton",
    ),
    "broken": ("preparing running finished", having(text=text), "_pmix_broken"),
    "fault": ("contacted reported preparing running finished", having(text=text), "_faults.take_daemon"),
    "note": ("reported preparing running finished", having(text=text), "_noted"),
    "finished": ("preparing running finished", having(worlds=whole, swept=listed(row(whole, text))), "_node_finished"),
}  # fmt: skip
"""Message -> states of the sending node, schema, handler. A node is `contacted`, `reported` after its hello, `preparing` from
the first `prepare` to the first `launch`, `running`, or `finished`. In any other state the message breaks the protocol."""

_spawned = having(
    program=listed(messages.without_nul), count=of(int), environment=named(messages.without_nul), info=named(maybe(text))
)
_pmix_value = row(text, place, row(whole, scalar))
DAEMON_REQUESTS: Table = {
    "publish": ("pmi pmix", having(space=text, values=named(either(text, _pmix_value))), "_publish"),
    "unpublish": ("pmi pmix", having(space=text, names=listed(text)), "_unpublish"),
    "lookup": ("pmi pmix", having(space=text, names=listed(text), wait=flag), "_look_up"),
    "spawn": ("pmi pmix", having(world=text, rank=whole, apps=listed(_spawned), pairs=named(text)), "_spawn"),
    "modex": ("pmix", having(world=text, rank=place), "_find_modex"),
}
"""Requests that a daemon makes by `ask`, with the protocols that must be on offer in place of states."""
