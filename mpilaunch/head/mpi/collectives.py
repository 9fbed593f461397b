"""Collectives of MPI libraries: every node says once that its ranks wait, with what they give, and hears once what all gave.

Pure bookkeeping: it is told what came, and returns what is to be sent. A fence of PMI, a fence, connect or group of PMIx are
all the same here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

MAX_WAITING, MAX_BYTES = 10_000, 64 << 20
"""Collectives of a job that may wait at a time, and bytes that they may hold: a message with more could not be sent."""
ITEM = 100
"""Bytes that an item of a list or an object is counted as, beside its text."""

Members = Sequence[Sequence[Any]]
"""Pairs [world's name, rank in it, or -1 for all its ranks]."""


class LimitExceeded(Exception):
    """A limit of the job is passed; the text says which."""


def weight(value: Any) -> int:
    """Return about how many bytes a value of JSON holds."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(ITEM + len(name) + weight(item) for name, item in value.items())
    return sum(ITEM + weight(item) for item in value) if isinstance(value, list) else 0


class Collective:
    """One collective on its way: which ranks of which nodes wait, and what they gave."""

    def __init__(self, message: dict[str, Any], size: int, number: int) -> None:
        self.number = number
        self.kind: str = message["kind"]
        self.members: Members = message["members"]
        self.size = size
        self.nodes: dict[int, int] = {}
        self.parts: list[Any] = []
        self.bytes = 0

    def answer(self) -> dict[str, Any]:
        """Return the members of the message that every node that waits is told."""
        return {"kind": self.kind, "members": self.members, "number": self.number, "parts": self.parts}


class Collectives:
    """All collectives of a job.

    Args:
        max_waiting, max_bytes: the limits.
    """

    def __init__(self, max_waiting: int = MAX_WAITING, max_bytes: int = MAX_BYTES) -> None:
        self._max_waiting, self._max_bytes = max_waiting, max_bytes
        self._open = self._bytes = 0
        self._waiting: dict[str, list[Collective]] = {}
        self._count = 0

    def enter(self, node: int, message: dict[str, Any], size: int) -> Collective | None:
        """Take a node's `collective` message; return the collective when now all its members wait, else None.

        Args:
            size: how many ranks its members are.

        Raises:
            LimitExceeded: a limit is passed.
        """
        key = json.dumps([message["kind"], message["members"]])
        queue = self._waiting.get(key, [])
        # A quick node may be in the next one of the same members while the answer to this one is on its way to others.
        one = next((one for one in queue if node not in one.nodes), None)
        added = ITEM + weight(message["data"])
        if one is None:
            added += len(key)
            if self._open >= self._max_waiting:
                raise LimitExceeded(f"more than {self._max_waiting:,} collectives of MPI wait")
        if self._bytes + added > self._max_bytes:
            raise LimitExceeded(f"collectives of MPI that wait hold more than {self._max_bytes:,} bytes")
        if one is None:
            self._count += 1
            self._open += 1
            one = Collective(message, size, self._count)
            self._waiting.setdefault(key, queue).append(one)
        self._bytes += added
        one.bytes += added
        one.nodes[node] = message["ranks"]
        one.parts.append(message["data"])
        if sum(one.nodes.values()) < one.size:
            return None
        queue.remove(one)
        self._open -= 1
        self._bytes -= one.bytes
        if not queue:
            del self._waiting[key]
        return one

    def waiting(self) -> Iterable[Collective]:
        """Return those that are not complete."""
        return [one for queue in self._waiting.values() for one in queue]
