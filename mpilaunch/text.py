"""Text helpers that every layer shares: suggestions, plurals, numbers, and texts of others made printable. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

# Control characters, bytes that are not UTF-8 (as lone surrogates), and characters that reverse or hide text.
_UNPRINTABLE = "[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most similar to `word`, None if none is similar."""
    from difflib import get_close_matches  # takes 4 ms; only errors need it

    return next(iter(get_close_matches(word, list(known), 1, 0.7)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean WORD?" for the known word most similar to `word`, "" if none is similar."""
    match = closest(word, known)
    return f"; did you mean {match}?" if match else ""


def escape_braces(text: str) -> str:
    """Return a template that stands for this text: one with its braces doubled."""
    return text.replace("{", "{{").replace("}", "}}")


def printable(text: str | bytes) -> str:
    r"""Return a text with all unprintable characters escaped, as in \x1b."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    return re.sub(_UNPRINTABLE, _escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: "1 node", "2 nodes"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def numbered_ranks(count: int) -> str:
    """Return the ranks of a job of this size: "rank 0", "ranks 0 to 3"."""
    return "rank 0" if count == 1 else f"ranks 0 to {count - 1}"


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> Iterator[str]:
    """Yield a header and rows as lines with columns of equal width, without trailing blanks; columns in `right` end there."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    pads = [str.rjust if name in right else str.ljust for name in header]
    for row in (header, *rows):
        yield "  ".join(pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True)).rstrip()


def shell_line(words: Iterable[str]) -> str:
    """Return a command line that every login shell splits into these words: sh, bash, dash, zsh, csh, tcsh and fish.

    Between quotes, csh replaces `!` and fish a doubled backslash, so these and the quote stand outside, behind a backslash. zsh
    replaces a word that begins with `=`. No form of a newline suits all shells.
    """
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    if re.fullmatch(r"[\w@%+:,./-][\w@%+=:,./-]*", word, re.ASCII):
        return word
    parts = [part for part in re.split(r"(['!\\])", word) if part]
    return "".join("\\" + part if part in ("'", "!", "\\") else f"'{part}'" for part in parts) or "''"


def seconds_of(text: str) -> float | None:
    """Return a duration in seconds: a number, perhaps with s, m, h or d; None for another text."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", text, re.ASCII)
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]] if match else None


def is_whole_number(text: str, digits: int) -> bool:
    """Return whether a text consists of 1 to `digits` ASCII digits."""
    return len(text) <= digits and text.isascii() and text.isdecimal()


def last_line(text: str) -> str:
    """Return the last line that is not blank, cut to 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
