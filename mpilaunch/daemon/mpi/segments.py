"""Shared memory that MPI libraries leave behind in /dev/shm when their processes are killed.

Normally the library removes it, or libpmix does for a rank that has died. When neither can, as when libpmix itself has crashed,
what the ranks have mapped tells whose it is. Only names that MPI libraries give are touched: programs have files of their own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = b"/dev/shm/"
NAMES = (b"vader_segment.", b"sm_segment.", b"osc_rdma.", b"mpich_shm_", b"ucx_shm_posix_", b"Intel_MPI_", b"psm2_shm.")
"""How the names begin: Open MPI 4 and 5, MPICH, UCX, Intel MPI, PSM."""


def mapped_by(pids: Iterable[int]) -> set[bytes]:
    """Return the paths of MPI's shared memory that living processes of ours have mapped."""
    found: set[bytes] = set()
    for pid in pids:
        try:
            with open("/proc/%d/maps" % pid, "rb") as file:
                lines = file.read().split(b"\n")
        except OSError:
            continue  # it has just gone
        paths = (line[line.index(FOLDER) :] for line in lines if FOLDER in line)
        found.update(path for path in paths if path.startswith(NAMES, len(FOLDER)) and not path.endswith(b" (deleted)"))
    return found


def remove(paths: Iterable[bytes]) -> None:
    """Remove shared memory whose processes have ended; what is gone is gone."""
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            pass
