"""Fences: every node says once that its ranks wait, with what they put, and hears once what all have put.

Pure bookkeeping: it is told what came, and returns what is to be sent.
"""

from __future__ import annotations

from collections.abc import Iterable


class Fences:
    """The fences of one job, one at a time: no node can be in the next one before all have left this one."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self._nodes = frozenset(nodes)
        self._waiting: dict[int, dict[str, str]] = {}

    def enter(self, node: int, pairs: dict[str, str]) -> dict[str, str] | None:
        """All ranks of a node wait and have put `pairs`; return what goes to every node when it was the last, else None.

        Raises:
            ValueError: the node is in this fence already, or is not of this job.
        """
        if node in self._waiting or node not in self._nodes:
            raise ValueError(f"node {node} cannot enter the fence")
        self._waiting[node] = pairs
        if len(self._waiting) < len(self._nodes):
            return None
        merged = {key: value for put in self._waiting.values() for key, value in put.items()}
        self._waiting = {}
        return merged

    @property
    def missing(self) -> list[int]:
        """The nodes that the others wait for, in order; none while nobody waits."""
        return sorted(self._nodes - self._waiting.keys()) if self._waiting else []
