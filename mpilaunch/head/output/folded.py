"""What --fold prints: identical output once, with the names of the nodes or ranks that wrote it. Pure."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mpilaunch.hosts.nodeset import fold, fold_numbers
from mpilaunch.wire.frames import STDOUT

RULE = f"{'-' * 15}\n"
"""Above and below the names of the nodes of a block."""
MOST_PAIRS, MOST_EQUAL = 4_000**2, 50_000
"""Pairs of lines of two texts, and equal ones among them, above which they are not compared: difflib would take long."""


class Folded(NamedTuple):
    """A text to print.

    Attributes:
        kind: STDOUT or STDERR.
        header: what comes before it.
        label: what comes before each of its lines.
    """

    kind: int
    header: str
    label: str
    text: bytes


def folded(outputs: Mapping[tuple[int, int], bytes], names: Mapping[int, str], style: str, *, tagged: bool) -> Iterator[Folded]:
    """Yield the texts to print, in order.

    Args:
        outputs: what each rank wrote to a stream, by stream and rank.
        names: rank -> the name of its node, of all ranks.
        style: as in `OutputPolicy.fold`.
        tagged: whether the user wants the names.
    """
    if style == "diff":
        outputs = {**{(STDOUT, rank): b"" for rank in names}, **outputs}
    groups: dict[tuple[int, bytes, int], list[int]] = {}
    for (kind, rank), text in sorted(outputs.items()):
        groups.setdefault((kind, text, rank if style == "hosts" else 0), []).append(rank)
    if style in ("blocks", "diff"):
        groups = dict(sorted(groups.items(), key=lambda group: -len(group[1])))
    one_each = len(names) == len(set(names.values()))
    reference: tuple[str, bytes] | None = None
    for (kind, text, _), ranks in groups.items():
        nodes = fold(names[rank] for rank in ranks)
        count = f" ({len(ranks)})" if len(ranks) > 1 else ""
        if style == "diff":
            if reference is None:
                reference = nodes + count, text
            else:
                yield Folded(kind, "", "", difference(*reference, nodes + count, text))
        elif style == "blocks":
            yield Folded(kind, f"{RULE}{nodes}{count}\n{RULE}" if tagged else "", "", text)
        else:
            label = f"{nodes}: " if one_each else f"[{fold_numbers(ranks)}] "
            yield Folded(kind, "", "" if style == "hosts" and not tagged else label, text)


def difference(name: str, text: bytes, other_name: str, other: bytes) -> bytes:
    """Return a unified diff from one text to another (diff(1)), or its first lines and the reason where it would take long."""
    before, after = (data.decode("utf-8", "replace").splitlines() for data in (text, other))
    counts = Counter(before)
    if len(before) * len(after) > MOST_PAIRS or sum(counts[line] for line in after) > MOST_EQUAL:
        lines = [f"--- {name}", f"+++ {other_name}", f"@@ too long to compare: {len(before):,} and {len(after):,} lines @@"]
    else:
        lines = [line.rstrip() if line[:3] in ("---", "+++") else line for line in _unified(name, before, other_name, after)]
    return "".join(f"{line}\n" for line in lines).encode()


def _unified(name: str, before: list[str], other_name: str, after: list[str]) -> Iterator[str]:
    return difflib.unified_diff(before, after, fromfile=name, tofile=other_name, lineterm="")
