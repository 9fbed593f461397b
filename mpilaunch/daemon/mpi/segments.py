"""Shared memory of MPI libraries that killed processes leave in /dev/shm.

Normally the library removes it, or libpmix after the death of a rank. When neither can, as after a crash of libpmix, the maps
of the ranks show which files are theirs. Only files with names of MPI libraries are removed: programs have files of their own.
"""

from __future__ import annotations

import os

from mpilaunch.daemon.ranks.reaper import process_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = b"/dev/shm/"
NAMES = (b"vader_segment.", b"sm_segment.", b"osc_rdma.", b"mpich_shm_", b"ucx_shm_posix_", b"Intel_MPI_", b"psm2_shm.")
"""Prefixes of Open MPI 4 and 5, MPICH, UCX, Intel MPI and PSM."""


def mapped_by(pids: Iterable[int]) -> set[bytes]:
    """Return the paths of MPI's shared memory that these processes have mapped."""
    mapped: set[bytes] = set()
    for pid in pids:
        lines = process_file(pid, "maps").split(b"\n")
        paths = (line[line.index(FOLDER) :] for line in lines if FOLDER in line)
        mapped.update(path for path in paths if path.startswith(NAMES, len(FOLDER)) and not path.endswith(b" (deleted)"))
    return mapped


def remove(paths: Iterable[bytes]) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            pass
