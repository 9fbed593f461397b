"""Fences: every node says once that its ranks wait, with what they put, and hears once what all have put.

Pure bookkeeping: it is told what came, and returns what is to be sent.
"""

from __future__ import annotations


class Fences:
    """The fences of one job, one at a time: no node can be in the next one before all have left this one.

    Args:
        size: ranks of the job.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: dict[int, int] = {}
        self._pairs: dict[str, str] = {}

    def enter(self, node: int, ranks: int, pairs: dict[str, str]) -> dict[str, str] | None:
        """So many ranks of a node wait, and put `pairs`; return what goes to every node when now all ranks wait, else None.

        Raises:
            ValueError: the node is in this fence already.
        """
        if node in self._waiting:
            raise ValueError(f"node {node} is in the fence already")
        self._waiting[node] = ranks
        self._pairs.update(pairs)
        if sum(self._waiting.values()) < self._size:
            return None
        everything, self._pairs, self._waiting = self._pairs, {}, {}
        return everything

    @property
    def waiting(self) -> bool:
        """Some ranks wait for others."""
        return bool(self._waiting)
