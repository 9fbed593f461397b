"""Published names: what MPI_Publish_name and PMIx_Publish give away, for MPI_Lookup_name and PMIx_Lookup of the whole job.

Pure bookkeeping. Values are whatever the node sent. Each protocol has a space of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

MAX_NAMES = 10_000
"""Names that a job may have published at a time."""


class Names:
    """The names of one job."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], Any] = {}
        self._waiting: list[tuple[str, Sequence[str], Callable[[dict[str, Any]], None]]] = []

    def publish(self, space: str, values: Mapping[str, Any]) -> str:
        """Keep names with their values, and tell those that wait for them; return why not, "" when it is done."""
        taken = [name for name in values if (space, name) in self._values]
        if taken:
            return f"{taken[0]} is published already"
        if len(self._values) + len(values) > MAX_NAMES:
            return f"more than {MAX_NAMES:,} names are published"
        self._values.update({(space, name): value for name, value in values.items()})
        waiting, self._waiting = self._waiting, []
        for wanted, names, found in waiting:
            self.lookup(wanted, names, True, found)
        return ""

    def unpublish(self, space: str, names: Sequence[str]) -> str:
        """Take names back; return why not, "" when it is done."""
        missing = [name for name in names if self._values.pop((space, name), None) is None]
        return f"{missing[0]} is not published" if missing else ""

    def lookup(self, space: str, names: Sequence[str], wait: bool, found: Callable[[dict[str, Any]], None]) -> None:
        """Hand over the values of those names that are published; with `wait`, not before all are."""
        values = {name: self._values[space, name] for name in names if (space, name) in self._values}
        if wait and len(values) < len(names):
            self._waiting.append((space, names, found))
        else:
            found(values)
