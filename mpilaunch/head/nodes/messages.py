"""The control messages that the head accepts from daemons, one row each: states, and schema with limits.

The messages to a daemon are in `wire.messages`. No I/O, and no message is acted on here: `NodeLink`, `Launch` and `MpiServices`
each have a table of their handlers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpilaunch.wire import messages
from mpilaunch.wire.messages import (
    between,
    both,
    flag,
    having,
    listed,
    maybe,
    named,
    of,
    perhaps,
    place,
    row,
    seconds,
    text,
    whole,
)

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
        hostname=path, python=path, executable=path, cpus=listed(row(short, unit, unit, unit)),
        network=having(
            interfaces=listed(row(path, path, flag, whole, whole, flag, listed(path))), name_at=listed(path),
            ports=listed(row(path, path, flag, whole, unit, path)), settings=listed(path), gpu_paths=named(path),
        ),
        free_port=short, ssh_connection=maybe(row(path, scalar, path, scalar)),
        gpus=listed(having(vendor=path, index=unit, uuid=path, bus_id=path, name=path, numa=unit)),
    ),
)  # fmt: skip
_evidence = perhaps(out_of_memory=text, memory_kills=whole, shm_free=whole, shm_size=whole)
_process = having(pid=whole, steady=flag, threads=listed(listed(row(path, whole, path))))
_problem = having(
    cause=one_of(
        "program-missing", "program-not-executable", "interpreter-missing", "directory-missing", "pmix-missing", "file-limit",
        "rendezvous-failed"
    ),
    detail=text,
)  # fmt: skip

DAEMON_MESSAGES: Table = {
    "hello": ("contacted", having(version=text, clock=seconds, facts=_facts)),
    "listening": ("preparing running", having(path=path, error=text)),
    "terminated": ("preparing running finished", having()),
    "ready": ("preparing running", having(programs=listed(text), notes=listed(text))),
    "refused": ("preparing running", having(problems=listed(_problem))),
    "started": (
        "running",
        having(ranks=listed(row(whole, whole, seconds)), failed=listed(row(whole, messages.number, seconds))),
    ),
    "exited": (
        "running",
        having(
            rank=whole, code=maybe(messages.code), signal=maybe(messages.signal), core=flag, clock=seconds, stopped=flag,
            stdin_read=whole, mpi=one_of("absent", "connected", "finalized", "aborted"), evidence=_evidence,
        ),
    ),
    "listens": ("running", having(rank=whole, port=short)),
    "stack": ("running finished", having(rank=whole, processes=listed(_process))),
    "observed": (
        "running finished",
        both(
            having(ranks=listed(row(whole, whole, path, seconds, path, whole, seconds, whole))),
            perhaps(nccl=text, fenced=listed(whole)),
        ),
    ),
    "backtrace": ("running finished", having(rank=whole, error=text, output=text, program=path)),
    "collective": ("running", having(kind=text, members=_members, ranks=whole, data=either(text, named(text)))),
    "ask": ("running finished", having(id=whole, request=text)),
    "answer": ("preparing running finished", having(id=whole, error=text)),
    "joined": ("running finished", having(world=text)),
    "waiting": ("running finished", having(world=text, absent=listed(whole))),
    "singleton": (
        "running finished", having(rank=whole, library=text, family=text, offer=listed(text), pmix_error=text)
    ),
    "broken": ("preparing running finished", having(text=text)),
    "fault": ("contacted reported preparing running finished", having(text=text)),
    "note": ("reported preparing running finished", having(text=text)),
    "finished": ("preparing running finished", having(worlds=whole, swept=listed(row(whole, text)))),
}  # fmt: skip
"""Message -> states of the sending node, schema. A node is `contacted`, `reported` after its hello, `preparing` from the first
`prepare` to the first `launch`, `running`, or `finished`. In any other state the message breaks the protocol."""

_spawned = having(
    program=listed(messages.without_nul), count=of(int), environment=named(messages.without_nul), info=named(maybe(text))
)
_pmix_value = row(text, place, row(whole, scalar))
DAEMON_REQUESTS: Table = {
    "publish": ("pmi pmix", having(space=text, values=named(either(text, _pmix_value)))),
    "unpublish": ("pmi pmix", having(space=text, names=listed(text))),
    "lookup": ("pmi pmix", having(space=text, names=listed(text), wait=flag)),
    "spawn": ("pmi pmix", having(world=text, rank=whole, apps=listed(_spawned), pairs=named(text))),
    "modex": ("pmix", having(world=text, rank=place)),
}
"""Requests that a daemon makes by `ask`, with the protocols that must be on offer in place of states."""
