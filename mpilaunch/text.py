"""Small rules for text that every layer shares: suggestions, plurals, whole numbers.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant."""
    from difflib import get_close_matches  # 4 ms, and needed only for an error

    return next(iter(get_close_matches(word, list(known), 1, 0.7)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message that names the known word which was probably meant."""
    found = closest(word, known)
    return f"; did you mean {found}?" if found else ""


def plural(count: int, noun: str) -> str:
    """Return a number with its noun: "1 node", "2 nodes"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def is_whole_number(text: str, digits: int) -> bool:
    """Return whether a text is nothing but ASCII digits, at most so many."""
    return len(text) <= digits and text.isascii() and text.isdecimal()
