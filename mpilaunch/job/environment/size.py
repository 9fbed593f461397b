"""Why the kernel refuses an environment or an argument list as too long. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LONGEST_STRING = 131_071
"""Bytes that Linux allows for one argument: 32 pages less the final NUL."""


def explain_size(environment: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Return which part of what a rank is given is the largest, and what to do about it."""
    sizes = {name: _size(name) + 1 + _size(value) for name, value in environment.items()}
    largest = max(sizes, key=lambda name: sizes[name], default=None)
    longest = max(map(_size, arguments), default=0)
    if sum(sizes.values()) < sum(map(_size, arguments)) or largest is None:
        if longest > LONGEST_STRING:
            return f"one argument has {longest:,} bytes, and the kernel allows {LONGEST_STRING:,}: write it to a file"
        return f"the arguments have {sum(map(_size, arguments)):,} bytes, more than the kernel allows: write them to a file"
    total = f"the environment is too long: the ranks are given {len(sizes):,} variables with {sum(sizes.values()):,} bytes"
    return f"{total}; the longest, {largest}, has {sizes[largest]:,}; --unset-env {largest} leaves it out"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))
