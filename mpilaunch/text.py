"""The word that was probably meant: one rule for options, keys, names and fields.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable


def near(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant."""
    from difflib import get_close_matches  # 4 ms, and needed only for an error

    return next(iter(get_close_matches(word, list(known), 1, 0.7)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message that names the known word which was probably meant."""
    found = near(word, known)
    return f"; did you mean {found}?" if found else ""
