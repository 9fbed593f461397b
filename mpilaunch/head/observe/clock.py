"""A node's monotonic clock, read on the head's: accurate to half the fastest round trip, and events of a node keep their order.

The estimate gets better while a job runs. Which rank failed first must not depend on it, so two events of one node are never
turned round by an estimate that came between them.
"""

from __future__ import annotations

from math import inf, isfinite, nextafter


class NodeClock:
    """The clock of one node. All times are in seconds."""

    def __init__(self) -> None:
        self._round_trip, self._offset = inf, 0.0
        self._last: tuple[float, float] | None = None

    def greeted(self, now: float, node: float) -> None:
        """Begin with a message that showed `node`, and took an unknown time: the first answer corrects it."""
        self._offset = now - node

    def answered(self, sent: float, now: float, node: float) -> None:
        """Take the answer to a question: it showed `node`, at a time between `sent` and `now`."""
        if 0 <= now - sent < self._round_trip and isfinite(node):
            self._round_trip = now - sent
            self._offset = (sent + now) / 2 - node

    def read(self, node: float) -> float:
        """Return the head's time of an event at `node`; called once for each event, as they arrive."""
        now = node + self._offset
        if self._last is not None:
            last_node, last = self._last
            if node > last_node:
                now = max(now, nextafter(last, inf))
            elif node < last_node:
                now = min(now, nextafter(last, -inf))
            else:
                now = last
        self._last = (node, now)
        return now
