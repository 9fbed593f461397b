"""Collectives of MPI libraries: each node enters with its ranks' data, and gets the data of all when every node has entered.

Pure bookkeeping without I/O. PMI's fence and PMIx's fence, connect and group are treated alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

MAX_WAITING, MAX_BYTES = 10_000, 64 << 20
"""How many collectives of a job may be incomplete at a time, and their bytes: a message with more could not be sent."""
MAX_MEMBERS = 100_000
"""Pairs that their members may be together, since the end of each rank looks for it among them."""
ITEM = 100
"""Bytes counted for an item of a list or an object, besides its text."""

Members = Sequence[Sequence[Any]]
"""Pairs of a world's name and a rank in it, -1 for all its ranks."""


class LimitExceeded(Exception):
    """A limit of the job is exceeded; the text names it."""


def weight(value: Any) -> int:
    """Return the approximate size of a JSON value in bytes."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(ITEM + len(name) + weight(item) for name, item in value.items())
    return sum(ITEM + weight(item) for item in value) if isinstance(value, list) else 0


class Collective:
    """One incomplete collective: the nodes that have entered, the number of their ranks, and their data."""

    def __init__(self, message: dict[str, Any], size: int, number: int) -> None:
        self.kind: str = message["kind"]
        self.members: Members = message["members"]
        self.size, self.number, self.bytes = size, number, 0
        self.nodes: dict[int, int] = {}
        self.parts: list[Any] = []

    @property
    def complete(self) -> bool:
        """Whether all ranks have entered."""
        return sum(self.nodes.values()) >= self.size

    def answer(self) -> dict[str, Any]:
        """Return the members of the message that answers every node."""
        return {"kind": self.kind, "members": self.members, "number": self.number, "parts": self.parts}


class Collectives:
    """All incomplete collectives of a job, within limits."""

    def __init__(self, max_waiting: int = MAX_WAITING, max_bytes: int = MAX_BYTES) -> None:
        self._max_waiting, self._max_bytes = max_waiting, max_bytes
        self._open = self._bytes = self._count = self._members = 0
        self._waiting: dict[str, list[Collective]] = {}

    def enter(self, node: int, message: dict[str, Any], size: int) -> Collective:
        """Enter a node's message of a collective of `size` ranks, which may be `complete` then; raises LimitExceeded."""
        key = json.dumps([message["kind"], message["members"]])
        queue = self._waiting.get(key, [])
        # A node may enter the next collective of the same members while other nodes still enter this one.
        one = next((one for one in queue if node not in one.nodes), None)
        added = ITEM + weight(message["data"])
        if one is None:
            added += len(key)
            if self._open >= self._max_waiting:
                raise LimitExceeded(f"more than {self._max_waiting:,} collectives of MPI wait")
            if self._members + len(message["members"]) > MAX_MEMBERS:
                raise LimitExceeded(f"collectives of MPI that wait have more than {MAX_MEMBERS:,} members")
        if self._bytes + added > self._max_bytes:
            raise LimitExceeded(f"collectives of MPI that wait hold more than {self._max_bytes:,} bytes")
        if one is None:
            self._count += 1
            self._open += 1
            self._members += len(message["members"])
            one = Collective(message, size, self._count)
            self._waiting.setdefault(key, queue).append(one)
        self._bytes += added
        one.bytes += added
        one.nodes[node] = message["ranks"]
        one.parts.append(message["data"])
        if not one.complete:
            return one
        queue.remove(one)
        self._open -= 1
        self._members -= len(one.members)
        self._bytes -= one.bytes
        if not queue:
            del self._waiting[key]
        return one

    def waiting(self) -> Iterable[Collective]:
        """Return the collectives that wait for more ranks, one after the other: whoever looks for one stops at the first."""
        return chain.from_iterable(self._waiting.values())
