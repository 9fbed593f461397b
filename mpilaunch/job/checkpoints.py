"""Checkpoint sets: the names of their directories, and the newest complete one. Pure.

A launch saves into PREFIX/unfinished-JOB. A rank that has saved creates the empty file `rank-R.saved` there, its mark. When all
marks exist, mpilaunch renames the directory to PREFIX/000001, 000002, ..., and creates a new unfinished-JOB for the next set.
Renaming is atomic, so a numbered set is complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

_NUMBERED = re.compile("[0-9]{6,255}", re.ASCII)
_MARK = re.compile(r"rank-([0-9]{1,9})\.saved", re.ASCII)


def unfinished(prefix: str, job_id: str) -> str:
    """Return the directory into which the ranks of a launch save."""
    return os.path.join(prefix, f"unfinished-{job_id}")


def newest_first(names: Iterable[str]) -> list[str]:
    """Return the names in the prefix that sets may have, the highest number first; only a directory with marks is a set."""
    return sorted((name for name in names if _NUMBERED.fullmatch(name)), key=int, reverse=True)


def next_name(names: Iterable[str]) -> str:
    """Return the name of the set after the newest one."""
    newest = next(iter(newest_first(names)), "0")
    return f"{int(newest) + 1:06}"


def mark_name(rank: int) -> str:
    """Return the name of the file that a rank creates when it has saved."""
    return f"rank-{rank}.saved"


def is_mark(name: str) -> bool:
    """Return whether a file is the mark of a rank."""
    return _MARK.fullmatch(name) is not None


def missing_ranks(names: Iterable[str], ranks: Iterable[int]) -> list[int]:
    """Return those of a job's ranks whose mark is not among the names in their directory."""
    marks = {int(match[1]) for name in names if (match := _MARK.fullmatch(name))}
    return [rank for rank in ranks if rank not in marks]
