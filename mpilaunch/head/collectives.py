"""Collectives of MPI libraries: every node says once that its ranks wait, with what they give, and hears once what all gave.

Pure bookkeeping: it is told what came, and returns what is to be sent. A fence of PMI, a fence, connect or group of PMIx are
all the same here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Members = Sequence[Sequence[Any]]
"""Pairs [world's name, rank in it, or -1 for all its ranks]."""


class Collective:
    """One collective on its way: which ranks of which nodes wait, and what they gave."""

    def __init__(self, message: dict[str, Any], size: int, number: int) -> None:
        self.number = number
        self.kind: str = message["kind"]
        self.members: Members = message["members"]
        self.size = size
        self.nodes: dict[int, int] = {}
        self.parts: list[Any] = []

    def answer(self) -> dict[str, Any]:
        """Return the members of the message that every node that waits is told."""
        return {"kind": self.kind, "members": self.members, "number": self.number, "parts": self.parts}


class Collectives:
    """All collectives of a job.

    Args:
        size_of: the number of ranks of a world by its name; raises KeyError for a world that is not there.
    """

    def __init__(self, size_of: Callable[[str], int]) -> None:
        self._size_of = size_of
        self._waiting: dict[str, list[Collective]] = {}
        self._count = 0

    def enter(self, node: int, message: dict[str, Any]) -> Collective | None:
        """Take a node's `collective` message; return the collective when now all its members wait, else None.

        Raises:
            KeyError, TypeError, ValueError: the message does not fit.
        """
        key = json.dumps([message["kind"], message["members"]])
        queue = self._waiting.setdefault(key, [])
        # A quick node may be in the next one of the same members while the answer to this one is on its way to others.
        one = next((one for one in queue if node not in one.nodes), None)
        if one is None:
            self._count += 1
            size = sum(self._size_of(name) if rank < 0 else 1 for name, rank in message["members"])
            one = Collective(message, size, self._count)
            queue.append(one)
        one.nodes[node] = int(message["ranks"])
        one.parts.append(message["data"])
        if sum(one.nodes.values()) < one.size:
            return None
        queue.remove(one)
        if not queue:
            del self._waiting[key]
        return one

    def waiting(self) -> Iterable[Collective]:
        """Return those that are not complete."""
        return [one for queue in self._waiting.values() for one in queue]
