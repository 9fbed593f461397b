"""Sets of checkpoints: how their directories are named, which of them is whole, and which is the newest.

All but `find_newest_set` is pure.

A launch saves into PREFIX/unfinished-JOB. A rank that has saved leaves a mark there, an empty file `rank-R.saved`; when
all ranks have, the directory is renamed to PREFIX/000001, 000002, ..., and the next set begins in a new one of the first name.
So a set is whole exactly when it has a number: renaming happens at once or not at all.

Ranks run what a set tells them to (a pickle is a program), so a set that a third user may have put there is never given
to them.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable

from mpilaunch.job import trust

_NUMBERED = re.compile("[0-9]{6,12}", re.ASCII)
_MARK = re.compile(r"rank-([0-9]{1,9})\.saved", re.ASCII)


def unfinished(prefix: str, job_id: str) -> str:
    """Return the directory into which the ranks of a launch save."""
    return os.path.join(prefix, f"unfinished-{job_id}")


def newest(names: Iterable[str]) -> str | None:
    """Return the newest whole set among the names in the prefix, None where there is none."""
    return max((name for name in names if _NUMBERED.fullmatch(name)), key=int, default=None)


def find_newest_set(prefix: str) -> str | None:
    """Return the path of the newest whole set in the prefix, None where there is none; raises OSError."""
    try:
        last = newest(os.listdir(prefix))
    except FileNotFoundError:
        return None
    if last is None:
        return None
    path = os.path.join(prefix, last)
    status = os.lstat(path)
    if trust.is_public(os.stat(prefix)) and trust.is_foreign(status):
        told = f"the set {last} belongs to {trust.owner_of(status)}, and every user may write there"
        raise PermissionError(errno.EPERM, told)
    return path


def next_name(names: Iterable[str]) -> str:
    """Return the name of the set after the newest one."""
    last = newest(names)
    return f"{int(last) + 1 if last else 1:06}"


def mark_name(rank: int) -> str:
    """Return the name of the file that a rank leaves when it has saved."""
    return f"rank-{rank}.saved"


def missing_ranks(names: Iterable[str], size: int) -> list[int]:
    """Return the ranks of a job of `size` that have left no mark among the names in their directory."""
    marks = {int(match[1]) for name in names if (match := _MARK.fullmatch(name))}
    return [rank for rank in range(size) if rank not in marks]
