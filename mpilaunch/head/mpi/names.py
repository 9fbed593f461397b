"""Published names of a job: MPI_Publish_name and PMIx_Publish add them, MPI_Lookup_name and PMIx_Lookup read them.

Pure bookkeeping without I/O; values are stored as the node sent them. Each protocol has its own space. A PMIx name can be
removed only by the node that published it, a PMI name by any rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mpilaunch.head.mpi.collectives import ITEM, weight

MAX_NAMES, MAX_BYTES = 10_000, 16 << 20
"""How many names a job may have published at a time, and their bytes including values."""
MAX_LOOKUPS = 10_000
"""Look-ups of a job that may wait at a time; their bytes count towards MAX_BYTES too."""

Reply = Callable[[dict[str, Any], str], None]
"""Called with the values and an error text."""


class PublishedNames:
    """The names of one job, within limits."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._values: dict[tuple[str, str], tuple[int, Any]] = {}
        self._waiting: list[tuple[int, str, Sequence[str], Reply]] = []

    def publish(self, node: int, space: str, values: Mapping[str, Any]) -> str:
        """Store names with their values and answer the look-ups that wait for them; return an error text or ""."""
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
        waiting, self._waiting = self._waiting, []
        for asker, asked, wanted, reply in waiting:
            self._bytes -= _held(wanted)
            self.lookup(asker, asked, wanted, True, reply)
        return ""

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
        if not wait or all((space, name) in self._values for name in names):
            reply({name: self._values[space, name][1] for name in names if (space, name) in self._values}, "")
        elif len(self._waiting) >= MAX_LOOKUPS:
            reply({}, f"more than {MAX_LOOKUPS:,} look-ups wait")
        elif self._bytes + _held(names) > self._max_bytes:
            reply({}, self._too_large())
        else:
            self._bytes += _held(names)
            self._waiting.append((node, space, names, reply))

    def forget(self, node: int) -> None:
        """Drop the waiting look-ups of a lost node."""
        self._bytes -= sum(_held(names) for owner, _, names, _ in self._waiting if owner == node)
        self._waiting = [one for one in self._waiting if one[0] != node]

    def _too_large(self) -> str:
        return f"published names hold more than {self._max_bytes:,} bytes"


def _held(names: Sequence[str]) -> int:
    """Return the size of a look-up that waits."""
    return ITEM + weight(list(names))
