"""What the measurements share: the result of one launch, and a place for its output."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True)
class Sample:
    """The times and the fault of one launch."""

    seconds: float
    cpu_seconds: float
    broken: int = 0
    """Number of lines that did not arrive whole after the tag of their rank."""
    fault: str = ""


Round = dict[str, Sample]
"""The samples of one round by the launcher's name."""


def output_file() -> IO[bytes]:
    """Return a file in memory, so that no disk is measured."""
    return tempfile.TemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
