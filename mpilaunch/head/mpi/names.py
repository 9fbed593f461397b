"""Published names of a job: MPI_Publish_name and PMIx_Publish add them, MPI_Lookup_name and PMIx_Lookup read them.

Pure bookkeeping without I/O; values are stored as the node sent them. Each protocol has its own space. A PMIx name can be
removed only by the node that published it, a PMI name by any rank.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mpilaunch.head.mpi.collectives import ITEM, weight

MAX_NAMES, MAX_BYTES = 10_000, 4 << 20
"""How many names a job may have published at a time, and their bytes including values."""
MAX_LOOKUPS = 10_000
"""Look-ups of a job that may wait at a time; their bytes count towards MAX_BYTES too."""

Reply = Callable[[dict[str, Any], str], None]
"""Called with the values and an error text."""


class _Waiter(NamedTuple):
    """A look-up that waits, and its size in bytes."""

    node: int
    space: str
    names: Sequence[str]
    reply: Reply
    size: int


class PublishedNames:
    """The names of one job, within limits. Each look-up waits for one of its missing names at a time."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._values: dict[tuple[str, str], tuple[int, Any]] = {}
        self._waiting: defaultdict[tuple[str, str], list[_Waiter]] = defaultdict(list)
        self._due: deque[_Waiter] = deque()
        self._lookups = 0

    def publish(self, node: int, space: str, values: Mapping[str, Any]) -> str:
        """Store names with their values; return an error text or "". `examine_next` answers the look-ups that wait for them."""
        taken = [name for name in values if (space, name) in self._values]
        if taken:
            return f"{taken[0]} is published already"
        if len(self._values) + len(values) > MAX_NAMES:
            return f"more than {MAX_NAMES:,} names are published"
        added = weight(dict(values))
        if self._bytes + added > self._max_bytes:
            return self._too_large()
        self._bytes += added
        self._values.update({(space, name): (node, value) for name, value in values.items()})
        for name in values:
            self._due.extend(self._waiting.pop((space, name), ()))
        return ""

    def examine_next(self) -> bool:
        """Answer one look-up if a name for which it waited was the last; return whether there was one to examine."""
        if not self._due:
            return False
        waiter = self._due.popleft()
        missing = self._missing(waiter.space, waiter.names)
        if missing is not None:
            self._waiting[waiter.space, missing].append(waiter)
        else:
            self._drop(waiter)
            waiter.reply(self._found(waiter.space, waiter.names), "")
        return True

    def unpublish(self, node: int, space: str, names: Sequence[str]) -> str:
        """Remove a node's names; return an error text or ""."""
        missing = ""
        for name in names:
            owner, value = self._values.get((space, name), (None, None))
            if owner is None or (space == "pmix" and owner != node):
                missing = missing or f"{name} is not published{'' if owner is None else ' by this node'}"
                continue
            del self._values[space, name]
            self._bytes -= weight({name: value})
        return missing

    def lookup(self, node: int, space: str, names: Sequence[str], wait: bool, reply: Reply) -> None:
        """Call `reply` with the values of the published names among `names`; with `wait`, once all are published."""
        missing = self._missing(space, names) if wait else None
        if missing is None:
            reply(self._found(space, names), "")
        elif self._lookups >= MAX_LOOKUPS:
            reply({}, f"more than {MAX_LOOKUPS:,} look-ups wait")
        elif self._bytes + (size := ITEM + weight(list(names))) > self._max_bytes:
            reply({}, self._too_large())
        else:
            self._lookups += 1
            self._bytes += size
            self._waiting[space, missing].append(_Waiter(node, space, names, reply, size))

    def forget(self, node: int) -> None:
        """Drop the waiting look-ups of a lost node."""
        for waiters in (self._due, *self._waiting.values()):
            kept = [waiter for waiter in waiters if waiter.node != node]
            for waiter in waiters if len(kept) < len(waiters) else ():
                if waiter.node == node:
                    self._drop(waiter)
            waiters.clear()
            waiters.extend(kept)

    def _drop(self, waiter: _Waiter) -> None:
        self._lookups -= 1
        self._bytes -= waiter.size

    def _missing(self, space: str, names: Sequence[str]) -> str | None:
        """Return the first of these names that is not published."""
        return next((name for name in names if (space, name) not in self._values), None)

    def _found(self, space: str, names: Sequence[str]) -> dict[str, Any]:
        return {name: self._values[space, name][1] for name in names if (space, name) in self._values}

    def _too_large(self) -> str:
        return f"published names hold more than {self._max_bytes:,} bytes"
