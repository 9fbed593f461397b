"""Tar archives on the stdout of independent commands, unpacked into a directory of this machine (`--stdout-archive`).

They are kept in files until the job has ended, then `tree` unpacks them one by one. What one host sends, or what of it cannot
be put into its place, does not concern the others.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from types import FrameType
from typing import IO, Any, NoReturn

from mpilaunch.cli.archives.tree import Tree
from mpilaunch.errors import UsageError, reason_of
from mpilaunch.job import trust
from mpilaunch.job.spec import JobSpec

OPTION = "--stdout-archive"
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_SHOWN = 10
"""Faults of one host that are shown; the others are counted."""


class Archives:
    """Where the archives of a job's commands are kept and unpacked; raises UsageError if nothing can be kept there safely.

    Within its context SIGTERM and SIGHUP end this process by an exception, unless a launch takes them, so that nothing is left.

    Args:
        directory: where the files of all hosts come, each under its name, a dot and the name of its host.
    """

    def __init__(self, directory: str) -> None:
        self._directory = os.path.realpath(directory)
        try:
            if trust.is_unprotected(os.stat(self._directory)):
                raise PermissionError(1, "every user may rename and remove what others have in this directory")
            if not self._directory.isprintable():
                raise OSError(errno.EINVAL, "its name has characters that cannot be printed")
            self._private = tempfile.mkdtemp(prefix=".mpilaunch-", dir=self._directory)
        except OSError as error:
            hint = "name a directory that you may write to, and others may not"
            raise UsageError("stdout-archive", f"{OPTION} {directory}: {reason_of(error)}", hint=hint) from error
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Archives:
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                self._handlers[number] = signal.signal(number, _leave)
        return self

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self._private, ignore_errors=True)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def kept(self, job: JobSpec) -> JobSpec:
        """Return the job with the stdout of each rank in a file; raises UsageError for two ranks with one host's name."""
        seen: set[str] = set()
        for place in job.job_map.placements:
            host = job.allocation.nodes[place.node].name
            if host in seen:
                hint = "let one command on each host write the archive"
                raise UsageError("stdout-archive", f"{OPTION}: {host} has more than one command", hint=hint)
            seen.add(host)
        template = self._private.replace("{", "{{").replace("}", "}}") + "/{rank}"
        return job._replace(output=job.output._replace(stdout_file=template, copy=False))

    def unpack(self, job: JobSpec) -> Iterator[str]:
        """Put the files of all archives into their places; yield a message for all that is not there then."""
        hosts = {place.rank: job.allocation.nodes[place.node].name for place in job.job_map.placements}
        paths = {rank: os.path.join(self._private, str(rank)) for rank in hosts}
        if os.path.isdir(self._private) and not any(map(os.path.exists, paths.values())):
            return  # the job did not start
        for rank, host in hosts.items():
            try:
                with open(paths[rank], "rb") as archive:
                    if os.fstat(archive.fileno()).st_size:  # else the command did not start, or had nothing to say
                        yield from self._unpack(archive, host)
            except OSError as error:
                yield f"{host}: the files have not come: {reason_of(error)}"

    def _unpack(self, archive: IO[bytes], host: str) -> Iterator[str]:
        root = tempfile.mkdtemp(dir=self._private)
        try:
            tree = Tree(root)
            tree.unpack(archive)
            tree.move(self._directory, f".{host}")
            yield from (f"{host}: {fault}" for fault in tree.faults[:_SHOWN])
            if len(tree.faults) > _SHOWN:
                yield f"{host}: and {len(tree.faults) - _SHOWN} more"
        finally:
            shutil.rmtree(root, ignore_errors=True)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
