"""What the ranks of a world tell each other by PMI: pairs of the whole world, and attributes of one node. No I/O."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

MAX_KEY, MAX_VALUE = 64, 1024
"""Longest key and value in bytes; sent to every rank, and enforced."""
MAX_PUTS = 256 << 10
"""Bytes of keys and values that one rank may put; MPICH puts some hundreds."""
MAX_PAIRS = 8192
"""Puts of one rank: a short pair costs some hundred bytes of memory."""
MAX_NODE_ATTRIBUTES = 1024


class KeyValues:
    """The pairs of one world as one node knows them.

    Args:
        ranks: those on this node, which may put.
        attributes: fixed pairs.
        pairs: what the world knows from its start.
    """

    def __init__(self, ranks: Iterable[int], attributes: dict[str, str], pairs: Any) -> None:
        self.attributes = attributes
        self._known: dict[str, str] = {}
        self._new: dict[str, str] = {}
        self._puts = dict.fromkeys(ranks, 0)
        self._put_bytes = dict.fromkeys(ranks, 0)
        self.learn(pairs)

    def put(self, rank: int, key: str, value: str) -> str:
        """Keep a pair until the next barrier; return the reason if it is refused, else ""."""
        if len(key) > MAX_KEY or len(value) > MAX_VALUE:
            return "key_or_value_too_long"
        if not fits_a_line(key + value):
            return "key_or_value_with_newline"
        if self._put_bytes[rank] + len(key) + len(value) > MAX_PUTS or self._puts[rank] >= MAX_PAIRS:
            return "too_much"
        self._puts[rank] += 1
        self._put_bytes[rank] += len(key) + len(value)
        self._new[key] = value
        return ""

    def get(self, key: str) -> str | None:
        """Return a value, None if no rank has put it yet."""
        return self.attributes.get(key, self._new.get(key, self._known.get(key)))

    def learn(self, pairs: Any) -> None:
        """Add the pairs of other nodes, which are not trusted: skip pairs that `put` would refuse."""
        if isinstance(pairs, dict):
            self._known.update(
                (key, value)
                for key, value in pairs.items()
                if isinstance(value, str) and len(key) <= MAX_KEY and len(value) <= MAX_VALUE and fits_a_line(key + value)
            )

    def new(self, *, keep: bool) -> dict[str, str]:
        """Return the pairs that other nodes do not know; unless `keep`, they know them from now on."""
        new = self._new
        if not keep:
            self._known.update(new)
            self._new = {}
        return new


class NodeAttributes:
    """Pairs of one node, which a rank may wait for."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._waiting_for: dict[str, list[Callable[[str | None], None]]] = {}

    def put(self, key: str, value: str) -> bool:
        """Keep a pair, and answer the ranks that wait for it; return False when there are too many."""
        if key not in self._values and len(self._values) >= MAX_NODE_ATTRIBUTES:
            return False
        self._values[key] = value
        for done in self._waiting_for.pop(key, ()):
            done(value)
        return True

    def get(self, key: str) -> str | None:
        return self._values.get(key)

    def wait_for(self, key: str, done: Callable[[str | None], None]) -> None:
        """Call `done` with the value once the key is put."""
        self._waiting_for.setdefault(key, []).append(done)


def fits_a_line(text: str) -> bool:
    """Return whether a text is latin-1, as the ranks' bytes are decoded, without newline and NUL."""
    return "\n" not in text and "\0" not in text and (text.isascii() or max(text) <= "\xff")
