"""Bracket ranges of host names and lists of numbers: expand `n[01-16]`, and fold names back for messages.

Pure and bounded: no text expands to more than MAX_ITEMS names or numbers. `Span`, by which every parser of mpilaunch marks the
faulty text, is here because the other parsers import this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from mpilaunch.errors import UsageError

MAX_ITEMS = 65_536
"""Limit on the names or numbers that one text expands to, so that a typing error cannot exhaust the memory."""

OPERATORS = "&!^"
"""What combines two sets of hosts, beside the comma."""

_SHOWN_WIDTH = 100
"""Limit on the characters of a line that an error shows: a list of 10,000 hosts must not bury the message."""

_ITEM = r"(?P<first>[0-9]{1,18})(?:-(?P<last>[0-9]{1,18})(?:/(?P<step>[0-9]{1,18}))?)?"
_NUMBER = r"(?<![0-9])([0-9]{1,18})(?![0-9])"
_UNPRINTABLE = r"[\x00-\x1f\x7f-\x9f]"


class Line(NamedTuple):
    """One line of a source; `column` is that of the first character of `text`, which may be only part of the line."""

    source: str
    number: int
    text: str
    column: int = 1


class Span(NamedTuple):
    """The characters start..end of a line."""

    line: Line
    start: int
    end: int

    @classmethod
    def of(cls, text: str, source: str, line: int = 1, column: int = 1) -> Span:
        """Return the span of a whole text at this line and column of the source."""
        return cls(Line(source, line, text, column), 0, len(text))

    @property
    def text(self) -> str:
        return self.line.text[self.start : self.end]

    def part(self, start: int, end: int | None = None) -> Span:
        """Return a part of this span; the offsets count from its start."""
        return Span(self.line, self.start + start, self.end if end is None else self.start + end)

    def strip(self) -> Span:
        """Return this span without leading and trailing blanks."""
        start = len(self.text) - len(self.text.lstrip())
        return self.part(start, start + len(self.text.strip()))

    def visible(self) -> Span:
        """Return a span of at least one character, to mark a place where something is missing."""
        return self if self.text else Span(self.line, self.start, self.start + 1)

    def split(self, separators: str = ",") -> Iterator[Span]:
        """Return the pieces between separators, a character each; separators inside brackets do not count."""
        depth = piece = 0
        for offset, character in enumerate(self.text):
            if character == "[":
                depth += 1
            elif character == "]":
                depth = max(0, depth - 1)
            elif character in separators and not depth:
                yield self.part(piece, offset)
                piece = offset + 1
        yield self.part(piece)

    def error(self, reference: str, message: str, hint: str | None = None) -> UsageError:
        """Return an error with its position, the line, and carets under this span."""
        line = self.line
        where = f"{line.source}:{line.number}:{line.column + self.start}"
        # Cut the line around the span, and keep one column per character so that the carets line up.
        cut = max(0, min(self.start - _SHOWN_WIDTH // 2, len(line.text) - _SHOWN_WIDTH))
        shown = re.sub(_UNPRINTABLE, " ", line.text[cut : cut + _SHOWN_WIDTH])
        carets = "^" * max(1, min(self.end, cut + _SHOWN_WIDTH) - self.start)
        context = (shown.rstrip(), " " * (self.start - cut) + carets)
        return UsageError(reference, f"{where}: {message}", context=context, hint=hint)


def expand(span: Span) -> list[str]:
    """Return the names that a text expands to, in order: `n[01-03]-ib[0-1]` is six names; raises UsageError."""
    text = span.text
    names = [""]
    offset = 0
    while True:
        opening = text.find("[", offset)
        literal = text[offset:] if opening < 0 else text[offset:opening]
        if "]" in literal:
            stray = offset + literal.index("]")
            raise span.part(stray, stray + 1).error("nodeset-syntax", "']' without a '[' before it", _RANGE_HINT)
        names = [name + literal for name in names]
        if opening < 0:
            return names
        closing = text.find("]", opening)
        if closing < 0:
            raise span.part(opening, opening + 1).error("nodeset-syntax", "'[' is never closed", _RANGE_HINT)
        ranges = _read_ranges(span.part(opening + 1, closing))
        numbers = [str(number).zfill(width) for numbers, width in ranges for number in numbers]
        _check_size(span, len(names) * len(numbers))
        names = [name + number for name in names for number in numbers]
        offset = closing + 1


def combine(span: Span, names_of: Callable[[Span], Iterable[str]]) -> list[str]:
    """Return the names of a set such as `n[1-9]!n5,m&@up`: sets combined from left to right, as by ClusterShell.

    `,` joins, `!` takes away, `&` keeps what both have and `^` what one of them has. Raises UsageError.

    Args:
        names_of: returns the names of one set; blanks around it are left out.
    """
    text, names = span.text, dict[str, None]()
    for piece in span.split(OPERATORS + ","):
        begin, end = piece.start - span.start, piece.end - span.start
        operator = text[begin - 1] if begin else ","
        if not (operand := piece.strip()).text:
            if operator in OPERATORS or text[end : end + 1] in tuple(OPERATORS):
                message, hint = "a set is missing beside an operator", "write sets like n[1-9]!n5"
                raise piece.visible().error("nodeset-syntax", message, hint)
            continue
        others = dict.fromkeys(names_of(operand))
        if operator == "&":
            names = {name: None for name in names if name in others}
            continue
        for name in others:
            if operator == "," or (operator == "^" and name not in names):
                names[name] = None
            else:
                names.pop(name, None)
        _check_size(span, len(names))
    return list(names)


def parse_numbers(span: Span) -> tuple[int, ...]:
    """Return the numbers of a list like `0-3,8` or `0-14/2`, in the order written; raises UsageError."""
    return tuple(number for numbers, _ in _read_ranges(span) for number in numbers)


def ranges_of(numbers: Iterable[int]) -> list[list[int]]:
    """Return the first and last numbers of the ascending ranges that the distinct numbers are."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def fold_numbers(numbers: Iterable[int]) -> str:
    """Return the distinct numbers as ascending ranges: `0-2,4`."""
    return ",".join(_folded(numbers, 0))


def name_ranks(numbers: Collection[int]) -> str:
    """Return "rank 3", "ranks 0-2,4"."""
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {fold_numbers(numbers)}"


def fold(names: Iterable[str]) -> str:
    """Return names as bracket ranges, for messages: `node[01-30,32],login`.

    Repeated names appear once. Names of one shape are folded at the place of the first, their numbers ascending; `expand`
    restores the same set. A name with a colon (IPv6) stays as it is.
    """
    shapes: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name in dict.fromkeys(names):
        pieces = [name] if ":" in name else re.split(_NUMBER, name)
        shapes.setdefault(tuple(pieces[::2]), []).append(tuple(pieces[1::2]))
    return ",".join(item for literals, numbers in shapes.items() for item in _fold_shape(literals, numbers))


_RANGE_HINT = "write numbers and ranges in brackets, like node[01-16], node[1,3,7-9] or node[1-10/3]"


def _read_ranges(span: Span) -> list[tuple[range, int]]:
    """Return each item of `01-16,20` as its numbers and their padded width."""
    ranges: list[tuple[range, int]] = []
    total = 0
    for item in map(Span.strip, span.split()):
        match = re.fullmatch(_ITEM, item.text)
        if match is None:
            message = f"'{item.text}' is not a number or a range" if item.text else "a number is missing"
            raise item.error("nodeset-syntax", message, "write numbers and ranges, like 0-3,8 or 1-10/3")
        first, last, step = int(match["first"]), int(match["last"] or match["first"]), int(match["step"] or 1)
        if last < first:
            hint = f"write {match['last']}-{match['first']}"
            raise item.error("nodeset-syntax", f"the range '{item.text}' is reversed", hint)
        if step == 0:
            raise item.error("nodeset-syntax", f"the step of '{item.text}' is 0", "a step is 1 or more, like 1-10/3")
        total += (last - first) // step + 1
        _check_size(span, total)
        ranges.append((range(first, last + 1, step), len(match["first"])))
    return ranges


def _check_size(span: Span, count: int) -> None:
    if count > MAX_ITEMS:
        raise span.error("nodeset-size", f"this stands for {count:,} items, more than the {MAX_ITEMS:,} allowed in one place")


def _fold_shape(literals: tuple[str, ...], names: list[tuple[str, ...]]) -> list[str]:
    """Fold names that differ only in their numbers, along the number that varies most."""
    dimensions = len(literals) - 1
    if dimensions == 0:
        return [literals[0]]
    axis = max(range(dimensions), key=lambda index: (len({numbers[index] for numbers in names}), index))
    rows: dict[tuple[str, str], list[str]] = {}
    for numbers in names:
        before = "".join(literals[index] + numbers[index] for index in range(axis)) + literals[axis]
        after = literals[axis + 1] + "".join(numbers[index] + literals[index + 1] for index in range(axis + 1, dimensions))
        rows.setdefault((before, after), []).append(numbers[axis])
    return [item for (before, after), texts in rows.items() for item in _fold_row(before, texts, after)]


def _fold_row(before: str, texts: list[str], after: str) -> Iterator[str]:
    """Fold the names `before<number>after`, one item per padded width."""
    padded = sorted({len(text) for text in texts if text.startswith("0") and len(text) > 1}, reverse=True)
    widths: dict[int, list[int]] = {}
    for text in texts:
        # 10 is the same padded to two digits or not: it joins 08 and 09 where they exist.
        width = next((width for width in padded if width <= len(text)), 0)
        widths.setdefault(width, []).append(int(text))
    for width, numbers in widths.items():
        items = _folded(numbers, width)
        yield f"{before}{items[0]}{after}" if len(numbers) == 1 else f"{before}[{','.join(items)}]{after}"


def _folded(numbers: Iterable[int], width: int) -> list[str]:
    """Return ascending items like `01-30` and `32`."""
    return ["-".join(str(end).zfill(width) for end in dict.fromkeys(ends)) for ends in ranges_of(numbers)]
